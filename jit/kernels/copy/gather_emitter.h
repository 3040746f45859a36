#pragma once
// Base of the emitters that gather lanes of channel blocks: registers for the operands, and the loop over pixels.
#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "jit/emitter.h"
#include "jit/kernels/copy/channel_gather.h"

namespace lathe {

class GatherEmitter : public Emitter {
 public:
  std::shared_ptr<const CodePages> emit(const std::string& name) {
    claim_vectors();
    begin();
    mov(table_, ptr[args_ + offsetof(ChannelGatherArgs, table)]);
    mov(to_, ptr[args_ + offsetof(ChannelGatherArgs, to)]);
    mov(pixels_, ptr[args_ + offsetof(ChannelGatherArgs, pixels)]);
    for (size_t i = 0; i < from_.size(); ++i) {
      mov(from_[i], ptr[args_ + offsetof(ChannelGatherArgs, sources) + i * sizeof(void*)]);
    }
    load_table();
    xor_(offset_.cvt32(), offset_.cvt32());
    while_at_least(pixels_, together_, [&] { gather(together_); });
    while_at_least(pixels_, 1, [&] { gather(1); });
    end();
    return finish(name);
  }

 protected:
  // `together`: pixels at a time.
  GatherEmitter(const ChannelGatherPlan& plan, int together) : Emitter(plan.isa), plan_(plan), together_(together) {
    if (plan.sources < 1 || plan.sources > kMostGatherSources) throw JitError("no plan: " + to_string(plan));
    for (int i = 0; i < plan_.sources; ++i) from_.push_back(claim_gpr("source"));
    result_ = claim_vec("result");
  }

  // Sources that are blended over the first one of their group.
  template <class Each>
  void for_blended(Each each) const {
    for (const std::vector<int>& group : plan_.groups) {
      for (size_t i = 1; i < group.size(); ++i) each(static_cast<size_t>(group[i]));
    }
  }

  virtual void claim_vectors() = 0;
  virtual void load_table() = 0;
  virtual void gather(int pixels) = 0;  // moves offset_ on

  const ChannelGatherPlan plan_;
  const int together_;
  const Gpr args_ = argument(0), table_ = claim_gpr("table"), to_ = claim_gpr("to");
  const Gpr pixels_ = claim_gpr("pixels left"), offset_ = claim_gpr("offset");
  std::vector<Gpr> from_;
  std::vector<Vec> index_;
  Vec result_, moved_;
};

// The code of a plan with groups, by AVX-512.
std::shared_ptr<const CodePages> emit_blended_gather(const ChannelGatherPlan& plan, const std::string& name);

}  // namespace lathe
