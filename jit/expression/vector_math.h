#pragma once
// The transcendental functions as vector operations, equal on AVX2 and AVX-512 but for scaling by powers of two, and
// for what AVX-512 takes from tables in a register.
// Largest errors over all float32 arguments, in units of the last place, as tests/jit/vector_math_test.cpp checks them:
//   exp      1     denormal results included; inf above 88.73, 0 below -103.98
//   sigmoid  3     0 below -88.37 (true value < 4.2e-39), for results >= 1e-38
//   tanh     5     2^-21.7 absolute; within [-1, 1]; exact at 0, +-inf
//   erf      6     2^-21.4 absolute; within [-1, 1]; exact at 0, for |x| > 3.99; AVX-512: 3, 2^-23.5
//   log      1     denormals included; -inf at 0, NaN below
//   pow      2     all special cases of C99
//   softplus_of_negative 4; 0 for |x| > 103.98
//   sin, cos 2^-23 absolute for |x| <= 1e5; beyond, bounded by 1 but not accurate
// NaN gives NaN throughout.
#include "jit/expression/vector_builder.h"

namespace lathe::vector_math {

using Id = VectorBuilder::Id;

Id exp(VectorBuilder& b, Id x);
Id log(VectorBuilder& b, Id x);
Id erf(VectorBuilder& b, Id x);
Id tanh(VectorBuilder& b, Id x);
Id sigmoid(VectorBuilder& b, Id x);
Id reciprocal_of_sigmoid(VectorBuilder& b, Id x);  // 1 + exp(-x): x * sigmoid(x) takes no product
Id softplus_of_negative(VectorBuilder& b, Id x);   // log(1 + exp(-|x|)), for which exp or log would do more
Id sin(VectorBuilder& b, Id x);
Id cos(VectorBuilder& b, Id x);
Id pow(VectorBuilder& b, Id base, Id exponent);

}  // namespace lathe::vector_math
