// Products of rows of bf16 and of quantised weights with many activations by AMX, compiled like groups.cc.
#include "groups/amx_tiles.inc"
#include "groups/formats.inc"

namespace moeinf {
namespace {

void multiply_tiles(const Matrix& w, std::int64_t first, std::int64_t last, const void* x, std::int64_t num_x,
                    void* scratch, float* y, std::int64_t y_stride) {
  const std::int64_t row_bytes =
      w.cols / block_weights(w.format) * static_cast<std::int64_t>(block_bytes(w.format));
  const AmxCall call = {w,
                        row_bytes,
                        (w.cols + kPairs - 1) / kPairs,
                        static_cast<const unsigned char*>(x),
                        static_cast<std::int64_t>(activation_bytes(ActivationKind::kTiles, w.cols)),
                        num_x,
                        static_cast<unsigned char*>(scratch),
                        y,
                        y_stride};
  if (w.format == Format::kBF16) return multiply_by_amx(call, first, last, Bf16Layout{});
  with_format(w.format, [&](auto format) {
    multiply_by_amx(call, first, last, QuantisedLayout<TileGroup<decltype(format)>>{});
  });
}

}  // namespace

namespace isa {

const AmxOps amx_tiles = {prepare_tile, multiply_tiles};

}  // namespace isa
}  // namespace moeinf
