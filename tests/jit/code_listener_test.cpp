#include "jit/code_listener.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "jit/kernel.h"

namespace lathe {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

std::shared_ptr<const CodePages> returns() {
  constexpr unsigned char kReturn = 0xc3;
  return std::make_shared<const CodePages>(&kReturn, 1, "code listener test");
}

void ask(const std::string& key) { (void)cached_code("code_listener_test " + key, returns); }

TEST(CodeListener, HearsEachKeyOnceWhetherEmittedOrCached) {
  ask("old");
  const CodeListener listener;
  ask("new");
  ask("old");
  ask("new");
  EXPECT_THAT(listener.keys(), ElementsAre("code_listener_test new", "code_listener_test old"));
  EXPECT_EQ(find_code(listener.keys()[0]).size(), 1U);
}

TEST(CodeListener, LetsTheInnermostOneListen) {
  const CodeListener outer;
  {
    const CodeListener inner;
    ask("inside");
    EXPECT_THAT(inner.keys(), ElementsAre("code_listener_test inside"));
  }
  EXPECT_THAT(outer.keys(), IsEmpty());
  ask("outside");
  EXPECT_THAT(outer.keys(), ElementsAre("code_listener_test outside"));
}

}  // namespace
}  // namespace lathe
