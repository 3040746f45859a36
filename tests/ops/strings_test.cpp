#include <gtest/gtest.h>

#include "ops/text/regex.h"
#include "ops/text/text_case.h"
#include "tests/ops/op_tester.h"

namespace lathe::testing {
namespace {

using Texts = std::vector<std::string>;

Tensor texts(std::initializer_list<std::string> elements) {
  return Tensor::from<std::string>({static_cast<int64_t>(elements.size())}, elements);
}

TEST(StringConcat, Broadcasts) {
  const Tensor column = texts({"a", "b"}).reshaped({2, 1});
  const Tensor result = OpTester("StringConcat").input(column).input(texts({"x", "y"})).result();
  EXPECT_EQ(result.dims(), (Dims{2, 2}));
  EXPECT_EQ(list<std::string>(result), (Texts{"ax", "ay", "bx", "by"}));
}

TEST(StringSplit, PadsShorterRowsWithEmptyText) {
  const auto results =
      OpTester("StringSplit").with("delimiter", ",").input(texts({"a,b,", "", "c"})).outputs(2).reference();
  EXPECT_EQ(results[0].dims(), (Dims{3, 3}));
  EXPECT_EQ(list<std::string>(results[0]), (Texts{"a", "b", "", "", "", "", "c", "", ""}));
  EXPECT_EQ(list<int64_t>(results[1]), (std::vector<int64_t>{3, 1, 1}));
}

TEST(StringSplit, TakesRunsOfSpaceAsOneDelimiter) {
  const auto results = OpTester("StringSplit").input(texts({"  one \t two  ", " "})).outputs(2).reference();
  EXPECT_EQ(list<std::string>(results[0]), (Texts{"one", "two", "", ""}));
  EXPECT_EQ(list<int64_t>(results[1]), (std::vector<int64_t>{2, 0}));
}

TEST(StringSplit, StopsAtTheMostSplits) {
  const auto spaces = OpTester("StringSplit").with("maxsplit", 1).input(texts({" a  b c "})).outputs(2).reference();
  EXPECT_EQ(list<std::string>(spaces[0]), (Texts{"a", "b c "}));
  const auto commas =
      OpTester("StringSplit").with("maxsplit", 1).with("delimiter", ",").input(texts({"a,b,c"})).result();
  EXPECT_EQ(list<std::string>(commas), (Texts{"a", "b,c"}));
}

TEST(StringNormalizer, DropsStopwordsThenChangesCase) {
  const Texts stopwords{"Monday"};
  const Tensor days = texts({"monday", "Monday", "tuesday"});
  const auto normalized = [&](int is_sensitive, const char* action) {
    return list<std::string>(OpTester("StringNormalizer")
                                 .with("stopwords", stopwords)
                                 .with("is_case_sensitive", is_sensitive)
                                 .with("case_change_action", action)
                                 .input(days)
                                 .result());
  };
  EXPECT_EQ(normalized(1, "UPPER"), (Texts{"MONDAY", "TUESDAY"}));
  EXPECT_EQ(normalized(0, "NONE"), (Texts{"tuesday"}));
}

TEST(StringNormalizer, LeavesOneEmptyTextWhenAllAreStopwords) {
  const Tensor row = texts({"a", "a"}).reshaped({1, 2});
  const Tensor result = OpTester("StringNormalizer").with("stopwords", Texts{"a"}).input(row).result();
  EXPECT_EQ(result.dims(), (Dims{1, 1}));
  EXPECT_EQ(list<std::string>(result), (Texts{""}));
}

TEST(StringNormalizer, RejectsWhatIsNoLocale) {
  EXPECT_THROW(OpTester("StringNormalizer").with("locale", "../../etc").input(texts({"a"})).reference(), Error);
  EXPECT_NO_THROW(OpTester("StringNormalizer").with("locale", "en_US").input(texts({"a"})).reference());
}

TEST(TextCase, MapsUnicodeAndKeepsMalformedBytes) {
  EXPECT_EQ(upper_case("stra\u00dfe \u00e9\u0436"), "STRA\u00dfE \u00c9\u0416");
  EXPECT_EQ(lower_case("\u00c9\u0416X"), "\u00e9\u0436x");
  EXPECT_EQ(upper_case("a\xff\xc3"), "A\xff\xc3");
  EXPECT_EQ(upper_case("\xc0\xafz"), "\xc0\xafZ");  // an overlong '/'
}

TEST(RegexFullMatch, MatchesTheWholeText) {
  const Tensor result = OpTester("RegexFullMatch").with("pattern", "a+b").input(texts({"aab", "aabc", ""})).result();
  EXPECT_EQ(list<bool>(result), (std::vector<bool>{true, false, false}));
}

TEST(RegexFullMatch, TakesLinearTimeAndRejectsBadPatterns) {
  EXPECT_FALSE(Regex("(a+)+(a+)+(a+)+$").matches_all_of(std::string(20000, 'a') + "b"));
  EXPECT_THROW(Regex("(a"), Error);
  EXPECT_THROW(OpTester("RegexFullMatch").with("pattern", "(a").input(texts({"a"})).reference(), Error);
}

}  // namespace
}  // namespace lathe::testing
