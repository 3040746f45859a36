#include "src/runtime/specialization.h"

#include "src/base/check.h"
#include "src/base/clock.h"

namespace lathe {
namespace {

void run_step(const Step& step, void* const* addresses, size_t thread_bytes, bool are_far, ThreadTeam& team) {
  if (step.threads <= 1 && step.rounds == 1) {
    step.run({addresses, 0, 1});
    return;
  }
  const int shares = step.share_count();
  for (int round = 0; round < step.rounds; ++round) {
    team.run(step.threads, shares, [&](int share, int thread) {
      step.run({addresses, share, shares, thread, step.threads, thread_bytes, round, are_far});
    });
  }
}

StepTime time_of(const Step& step) {
  StepTime time;
  time.node = step.node;
  time.op = step.op;
  time.kernel = step.kernel;
  time.threads = step.threads;
  time.flop = step.flop;
  time.bytes = step.bytes;
  return time;
}

}  // namespace

// For one run at a time: memory, while it runs, and the addresses of all buffers.
struct Specialization::Arena {
  std::unique_ptr<ArenaPool::Block> block;
  void* memory = nullptr;  // what `addresses` are of
  std::vector<void*> addresses;
};

Specialization::Specialization(std::unique_ptr<Graph> graph, const LowerOptions& options,
                               std::shared_ptr<ThreadTeam> team, std::shared_ptr<ArenaPool> arenas, Constants constants)
    : graph_(std::move(graph)),
      lowered_(constants == Constants::keep ? lower_graph(*graph_, options) : lower_graph_once(*graph_, options)),
      memory_(plan_memory(lowered_)),
      team_(std::move(team)),
      arenas_(std::move(arenas)) {
  for (ValueId id : graph_->outputs) output_types_.push_back(graph_->value(id).type);
  for (size_t b = 0; b < lowered_.buffers.size(); ++b) {
    const auto [root, offset] = lowered_.root(static_cast<BufferId>(b));
    if (lowered_.buffer(root).external) bound_.push_back({b, static_cast<size_t>(root), offset});
  }
  for (const Step& step : lowered_.steps)
    LATHE_CHECK(step.threads <= team_->size(), "step wants more threads than there are");
  link_weights();
}

Specialization::~Specialization() = default;

// Each streaming step learns where the next one's weights begin; the last one's successor is the first, of the next
// run. Of a node's several ways, of which one runs, the first stands for all.
void Specialization::link_weights() {
  const void *next = nullptr, *behind_node = nullptr;
  const std::string* node = nullptr;
  for (int round = 0; round < 2; ++round)
    for (size_t s = lowered_.steps.size(); s-- > 0;) {
      Step& step = lowered_.steps[s];
      if (node == nullptr || *node != step.node) behind_node = next;
      node = &step.node;
      if (step.next_weights) *step.next_weights = step.runs ? behind_node : next;
      if (step.weights != nullptr) next = step.weights;
    }
}

std::unique_ptr<Specialization::Arena> Specialization::take_arena() const {
  std::unique_ptr<Arena> arena;
  {
    std::lock_guard lock(mutex_);
    if (!idle_.empty()) {
      arena = std::move(idle_.back());
      idle_.pop_back();
    }
  }
  if (arena == nullptr) arena = std::make_unique<Arena>();
  arena->block = arenas_->take(memory_.arena_bytes);
  if (arena->memory != arena->block->memory()) place(*arena);
  return arena;
}

void Specialization::place(Arena& arena) const {
  arena.memory = arena.block->memory();
  arena.addresses.resize(lowered_.buffers.size());
  for (size_t b = 0; b < lowered_.buffers.size(); ++b) {
    const auto [root, offset] = lowered_.root(static_cast<BufferId>(b));
    if (memory_.offsets[b] != MemoryPlan::kNotInArena)
      arena.addresses[b] = static_cast<std::byte*>(arena.memory) + memory_.offsets[b];
    else if (const void* fixed = lowered_.buffer(root).fixed)
      arena.addresses[b] = static_cast<std::byte*>(const_cast<void*>(fixed)) + offset;
  }
}

void Specialization::bind(Arena& arena, std::span<const Tensor> inputs, std::span<Tensor> outputs) const {
  for (size_t i = 0; i < inputs.size(); ++i)
    arena.addresses[static_cast<size_t>(lowered_.inputs[i])] = const_cast<void*>(inputs[i].raw());
  for (size_t i = 0; i < outputs.size(); ++i)
    arena.addresses[static_cast<size_t>(lowered_.outputs[i])] = outputs[i].mutable_raw();
  for (const Bound& bound : bound_)
    if (bound.buffer != bound.root)
      arena.addresses[bound.buffer] = static_cast<std::byte*>(arena.addresses[bound.root]) + bound.offset;
}

void Specialization::run(std::span<const Tensor> inputs, std::span<Tensor> outputs, Profile* profile) const {
  auto arena = take_arena();
  bind(*arena, inputs, outputs);
  const bool are_far = team_->is_far();
  if (profile == nullptr) {
    for (const Step& step : lowered_.steps)
      if (step.is_wanted(arena->addresses.data()))
        run_step(step, arena->addresses.data(), memory_.thread_bytes, are_far, *team_);
  } else {
    for (const Step& step : lowered_.steps) {
      if (!step.is_wanted(arena->addresses.data())) continue;
      StepTime time = time_of(step);
      time.begin_ns = now_ns();
      run_step(step, arena->addresses.data(), memory_.thread_bytes, are_far, *team_);
      time.end_ns = now_ns();
      profile->steps.push_back(std::move(time));
    }
  }
  arenas_->give(std::move(arena->block));
  std::lock_guard lock(mutex_);
  idle_.push_back(std::move(arena));
}

}  // namespace lathe
