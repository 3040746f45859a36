#pragma once

namespace lathe {

// Threads worth using for so much work: a fork and join costs a few microseconds.
int worthwhile_threads(double flop, int threads);

// Into how many shares a step's work is cut for `threads` threads: a multiple of them. Several for each thread where
// the work is large, so that a thread whose CPU is slower, or taken away for a while, leaves more to the others; each
// long enough that what it reads again costs little.
int worthwhile_shares(double flop, int threads);

}  // namespace lathe
