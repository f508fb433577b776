// Products of rows of quantised weights with int8 activations: whole numbers within blocks, floats between.
#pragma once

// A prepared int8 activation is one record for each step of kStepBlocks blocks: in each lane the scale of the
// lane's block, then (where weights have an offset) what that adds to the lane's sum, negated, then the whole
// numbers. Behind the records is one table for each 8 blocks, for Q4_K: their scales, then each scale times
// the sum of the block's whole numbers, which minima are multiplied with.
constexpr int kStep = kInt8Block * kStepBlocks;
constexpr int kRecordScales = 4 * kLanes, kRecordOffsets = kWeightOffset != 0 ? 4 * kLanes : 0;
constexpr int kRecordBytes = kRecordScales + kRecordOffsets + kStep;
constexpr int kTableBytes = 64;

inline std::int64_t num_steps(std::int64_t cols) { return (cols + kStep - 1) / kStep; }

// p: the blocks of a step; to expand, one block, of which 32 bf16 are made.
struct Q8_0 {
  static constexpr int kBlockBytes = 34;
  static F32 scales(const unsigned char* p) { return scales_f16<kBlockBytes>(p); }
  static Weights8 weights(const unsigned char* p) { return load_bytes<kBlockBytes>(p + 2); }
  static void expand(const unsigned char* p, unsigned char* out) { expand_bytes(p + 2, scale_f16(p), out); }
};

template <const std::int8_t (&kValues)[16]>
struct F16Nibbles {
  static constexpr int kBlockBytes = 18;
  Table table = load_table(kValues);
  static F32 scales(const unsigned char* p) { return scales_f16<kBlockBytes>(p); }
  Weights8 weights(const unsigned char* p) const { return look_up<kBlockBytes>(table, p + 2); }
  void expand(const unsigned char* p, unsigned char* out) const {
    expand_nibbles(table, p + 2, scale_f16(p), out);
  }
};
using Q4_0 = F16Nibbles<kQ4_0Values>;
using IQ4_NL = F16Nibbles<kIQ4NLValues>;

struct MXFP4 {
  static constexpr int kBlockBytes = 17;
  Table table = load_table(kMXFP4Values);
  static F32 scales(const unsigned char* p) { return scales_from<kBlockBytes>(kHalfOfE8M0.values, p); }
  Weights8 weights(const unsigned char* p) const { return look_up<kBlockBytes>(table, p + 1); }
  void expand(const unsigned char* p, unsigned char* out) const {
    expand_nibbles(table, p + 1, broadcast(kHalfOfE8M0.values[*p]), out);
  }
};

// sums[i] += products of one step of a row with each activation's record, scaled.
template <int N, int R>
ALWAYS_INLINE void add_products(Weights8 weights, F32 scales, const unsigned char* const (&x)[N],
                                std::int64_t record, int r, F32 (&sums)[N][R]) {
  UNROLL for (int i = 0; i < N; ++i) {
    const unsigned char* const at = x[i] + record;
    sums[i][r] = fma(mul(dot(weights, at + kRecordScales), scales), load_f32(at), sums[i][r]);
  }
}

// A step of which a row has the first block only, the others being zeros.
template <class Block>
struct LastStep {
  unsigned char bytes[kStepBlocks * Block::kBlockBytes] = {};
  explicit LastStep(const unsigned char* p) { std::memcpy(bytes, p, Block::kBlockBytes); }
};

template <class Block>
struct BlockRows {
  static constexpr int rows(int num_x) { return num_x <= 2 ? 4 : 2 * num_x <= kMaxSums ? 2 : 1; }
  static constexpr int kStepBytes = kStepBlocks * Block::kBlockBytes;

  template <int N, int R>
  static void run(const DotCall& call, const unsigned char* row, const unsigned char* const (&x)[N],
                  float (&out)[N][R]) {
    const Block block;
    const std::int64_t ahead = prefetch_distance(R * call.row_bytes), num_whole = call.cols / kStep;
    F32 sums[N][R];
    clear(sums);
    for (std::int64_t s = 0; s < num_whole; ++s) {
      UNROLL for (int r = 0; r < R; ++r) {
        const unsigned char* const p = row + r * call.row_bytes + s * kStepBytes;
        __builtin_prefetch(p + ahead);
        if (kStepBytes > 64) __builtin_prefetch(p + ahead + 64);
        add_products(block.weights(p), block.scales(p), x, s * kRecordBytes, r, sums);
      }
    }
    if (kStepBlocks > 1 && call.cols % kStep != 0) {
      UNROLL for (int r = 0; r < R; ++r) {
        const LastStep<Block> last(row + r * call.row_bytes + num_whole * kStepBytes);
        add_products(block.weights(last.bytes), block.scales(last.bytes), x, num_whole * kRecordBytes, r,
                     sums);
      }
    }
    finish(sums, out);
  }
};

struct Q4KRows {
  static constexpr int rows(int num_x) { return num_x == 1 ? 4 : 2 * num_x <= kMaxSums ? 2 : 1; }
  static constexpr int kBlockBytes = 144, kBlockSteps = 256 / kStep;

  template <int N, int R>
  static void run(const DotCall& call, const unsigned char* row, const unsigned char* const (&x)[N],
                  float (&out)[N][R]) {
    const std::int64_t ahead = prefetch_distance(R * call.row_bytes), num_blocks = call.cols / 256;
    const std::int64_t tables = num_steps(call.cols) * kRecordBytes;
    F32 sums[N][R];
    clear(sums);
    for (std::int64_t b = 0; b < num_blocks; ++b) {
      UNROLL for (int r = 0; r < R; ++r) {
        const unsigned char* const p = row + r * call.row_bytes + b * kBlockBytes;
        UNROLL for (int line = 0; line < kBlockBytes; line += 64) __builtin_prefetch(p + ahead + line);
        const SubBlocks sub = load_sub_blocks(p);
        SubBlocks products[N];
        UNROLL for (int i = 0; i < N; ++i) {
          products[i] = times(sub, x[i] + tables + b * kTableBytes);
          sums[i][r] = subtract_minima(products[i], sums[i][r]);
        }
        UNROLL for (int s = 0; s < kBlockSteps; ++s) {
          const std::int64_t at = (b * kBlockSteps + s) * kRecordBytes + kRecordScales;
          const Weights8 weights = nibbles(p + 16, s);
          UNROLL for (int i = 0; i < N; ++i) {
            sums[i][r] = fma(dot_nibbles(weights, x[i] + at), scales_of(products[i], s), sums[i][r]);
          }
        }
      }
    }
    finish(sums, out);
  }
};
