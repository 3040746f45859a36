#pragma once

namespace lathe {

// Threads worth using for so much work: a fork and join costs a few microseconds.
int worthwhile_threads(double flop, int threads);

// The same for work that waits for what it reads, weights that come from beyond a core's own cache above all.
int worthwhile_readers(double bytes, int threads);

// The same for work that moves so many bytes between the caches and does little else: what it reads was written by all
// threads of the step before, so that one thread alone would fetch the others' part.
int worthwhile_movers(double bytes, int threads);

// Into how many shares a step's work is cut for `threads` threads: a multiple of them. Several for each thread where
// the work is large, so that a thread whose CPU is slower, or taken away for a while, leaves more to the others; each
// long enough that what it reads again costs little.
int worthwhile_shares(double flop, int threads);

// Whether each thread shall make for itself what all of them compute from the input and then read again and again. To
// write a line that another core has read takes 7 ns where the two share an L3 cache and 27 where they do not (Zen 4),
// to write one's own 0.6: few threads are sooner done without an exchange. On one die of a Zen 5 it takes 2 ns: what
// can go both ways asks StepArgs::are_far.
bool pays_own_copies(int threads);

}  // namespace lathe
