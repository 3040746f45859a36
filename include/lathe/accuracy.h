#pragma once

namespace lathe {

// How far results may depart from a plain float32 implementation; docs/architecture.md has the bounds.
enum class Accuracy { strict, normal, fast };

}  // namespace lathe
