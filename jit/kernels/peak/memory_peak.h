#pragma once
#include <cstdint>

#include "jit/kernel.h"
#include "src/base/cpu.h"

namespace lathe {

// Loops that do nothing but move whole vectors: the yardstick for "percent of a cache's bandwidth".
enum class MemoryTraffic : uint8_t { read, write, copy };

// Passes over `chunks` >= 1 chunks of memory_peak_chunk(isa) bytes each, 64-byte aligned; read takes them from `from`,
// write puts zeros into `to`, copy does both.
Kernel<void(const void* from, void* to, int64_t chunks)> emit_memory_peak(Isa isa, MemoryTraffic traffic);
int64_t memory_peak_chunk(Isa isa);

}  // namespace lathe
