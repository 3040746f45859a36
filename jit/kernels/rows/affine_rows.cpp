#include "jit/kernels/rows/affine_rows.h"

#include <cstddef>
#include <string>

#include "jit/kernels/rows/reduce_emitter.h"

namespace lathe {
namespace {

constexpr int kUnroll = 4;

class AffineEmitter : public RowEmitter {
 public:
  explicit AffineEmitter(Isa isa) : RowEmitter(isa) {}

  void emit() {
    const Gpr args = argument(0), from = claim_gpr("from"), to = claim_gpr("to"), rows = claim_gpr("rows"),
              columns = claim_gpr("columns"), offset = claim_gpr("offset"), left = claim_gpr("columns left"),
              temp = claim_gpr("temporary"), row = claim_gpr("row");
    const Vec center = claim_vec("center"), scale = claim_vec("scale"), shift = claim_vec("shift");
    const std::vector<Vec> x = claim_vecs("x", kUnroll);
    begin();
    mov(from, ptr[args + offsetof(AffineArgs, from)]);
    mov(to, ptr[args + offsetof(AffineArgs, to)]);
    mov(rows, ptr[args + offsetof(AffineArgs, rows)]);
    mov(columns, ptr[args + offsetof(AffineArgs, columns)]);
    prepare_tail(columns, temp);
    xor_(row.cvt32(), row.cvt32());
    const auto scalar = [&](const Vec& into, size_t place) {
      mov(temp, ptr[args + place]);
      vbroadcastss(into, dword[temp + row * 4]);
    };
    loop_down(rows, [&] {
      scalar(center, offsetof(AffineArgs, centers));
      scalar(scale, offsetof(AffineArgs, scales));
      scalar(shift, offsetof(AffineArgs, shifts));
      for_columns(columns, offset, left, kUnroll, [&](int vectors, bool is_tail) {
        for (int i = 0; i < vectors; ++i) {
          const Vec& value = x[static_cast<size_t>(i)];
          load_part(value, from + offset + i * vec_bytes(), is_tail);
          vsubps(value, value, center);
          vfmadd213ps(value, scale, shift);
          store_part(to + offset + i * vec_bytes(), value, is_tail);
        }
      });
      inc(row);
      lea(from, ptr[from + columns * 4]);
      lea(to, ptr[to + columns * 4]);
    });
    end();
    emit_tables();
  }
};

}  // namespace

Kernel<AffineFn> affine_rows_kernel(Isa isa) {
  const std::string key = vector_set(isa) + " affine rows";
  return Kernel<AffineFn>(cached_code(key, [&] {
    AffineEmitter emitter(isa);
    emitter.emit();
    return emitter.finish(key);
  }));
}

}  // namespace lathe
