// The inner loops, one table of functions for each instruction set; all are equal to the generic one within a
// stated tolerance. None of them allocates, locks or starts threads: callers split rows over threads.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "moeinf/compute/formats/formats.h"

namespace moeinf {

// What activations are turned into before weights of a format are multiplied with them.
enum class ActivationKind : int {
  kF32,    // as they are
  kBF16,   // rounded to nearest even
  kInt8,   // blocks of 32 with a float scale; only the Ops that prepared them knows their layout
  kTiles,  // rounded as for kBF16, 16 rows at a time
};

// What an expert does with the product of its first matrix.
enum class Activation : int {
  kSilu,       // a sigmoid(a)
  kGelu,       // exact, by erf
  kGeluTanh,   // by tanh
  kQuickGelu,  // a sigmoid(1.702 a)
  kRelu,
  kSquaredRelu,
  kSwigluClamped,  // g sigmoid(1.702 g) (u + 1), with g = min(a, limit) and u = clip(up, -limit, limit)
  kSiluClamped,    // g sigmoid(g) u, of the same g and u
  kClampedSilu,    // min(a sigmoid(a), limit) u, of the same u
  kSoftcapped,  // c(a, of_gate) sigmoid(a) c(up, limit), with c(x, most) = most tanh(x / most), c(x, 0) = x
};

// Of activations that are clamped.
struct Limits {
  float limit, of_gate;
  Limits(float most = 0, float most_of_gate = 0) : limit(most), of_gate(most_of_gate) {}
};

// Which numbers of a head are rotated together: x[i] with x[i + half], or x[2 i] with x[2 i + 1].
enum class Pairs { kHalves, kNeighbours };

constexpr int kMaxDotRows = 8;  // activations that dot_rows takes at once

constexpr int kActivationKinds = 4, kTileActivations = 16;  // the latter of kTiles

// f32, narrow f32, f16 -> kF32; bf16 -> kBF16; quantised -> kInt8.
ActivationKind activation_of(Format format);
// Bytes of one prepared activation of `cols` elements, a multiple of 64. Rows of prepared activations lie
// that far apart.
std::size_t activation_bytes(ActivationKind kind, std::int64_t cols);

constexpr int kMaxHeadDim = 576;  // what the loops keep on their stack
constexpr int kMaxGroup = 8;

// What is added to scores by how far back a position lies: to that of a query with state r at distance d the
// sum over c of r[c] * profiles[c][d], and nothing from `extent` on.
struct RelativeBias {
  const float* states = nullptr;    // [queries, width]; null: nothing is added
  const float* profiles = nullptr;  // [width, extent], of the distances extent - 1 down to 0
  std::int64_t width = 0, extent = 0;
};

// Query heads of one token that share a key/value head, and the positions first..last that they attend to.
struct AttendTask {
  const float* queries;  // [num_queries <= kMaxGroup, head_dim <= kMaxHeadDim]
  int num_queries;
  const unsigned char *keys, *values;  // [positions, head_dim] in `format`: f32, f16, bf16 or q8_0
  Format format;
  std::int64_t first, last, head_dim;
  float scale;         // of the scores
  const float* sinks;  // [num_queries], or null: a further score of each, not scaled, which weighs no value
  RelativeBias relative{};  // of these queries
  std::int64_t own = 0;     // their position, which distances count from
  float cap = 0;            // scores s become cap tanh(s / cap); 0: they stay
};

// Of a softmax that goes over its scores block by block.
struct SoftmaxState {
  float largest;  // score so far; minus infinity before the first
  float total;    // of e^(score - largest)
};

// Queries that attend to the same rows, whose first `rank` numbers are their values too (latent attention),
// or which have rows of values beside them.
struct SharedRowsTask {
  const unsigned char* queries;  // [num_queries <= kMaxSharing, width] bf16, query_bytes apart, scaled
  std::int64_t query_bytes;
  int num_queries;
  const unsigned char* rows;  // [num_rows, width] in `format`: bf16 or q8_0
  Format format;
  std::int64_t num_rows, width, rank;  // width and rank multiples of 32
  const std::int64_t* seen;            // [num_queries]: how many of the rows, from the first on
  void* scratch;  // shared_rows_bytes(width, rank, whether there are values, num_queries), 64-byte aligned
  const unsigned char* values = nullptr;  // [num_rows, rank] in `format`
  const unsigned char* rests = nullptr;   // laid out like queries: what rounding to bf16 took of them
  bool rounds_weights = false;            // to bf16, else they keep 16 bits
  const unsigned char* pairs = nullptr;   // in the place of values: these as pair_values lays them out
};
constexpr int kMaxSharing = 128;

// The tokens of one value head of gated DeltaNet. Of a token with decay a and rate b:
// S = a S + b k (v - (a S)^T k)^T, then out = S^T q.
struct DeltaTask {
  const float *queries, *keys;              // [tokens, key_dim]
  const float* values;                      // [tokens, value_dim]
  std::int64_t stride;                      // between the rows of these three
  const float *decays, *rates;              // [tokens]; decays of channels [tokens, key_dim], rows as of keys
  bool of_channels;                         // whether each channel of the keys has a decay of its own
  std::int64_t tokens, key_dim, value_dim;  // at least one token
  const float* state;                       // [key_dim, value_dim]: S before the first token
  float* new_state;                         // and after the last; may be state
  float* out;                               // [tokens, value_dim]
};

// The tokens of one head of Mamba-2. Of a token with decay a: S = a S + k v^T, then out = S^T q.
struct ScanTask {
  const float *queries, *keys;              // [tokens, key_dim]
  std::int64_t stride;                      // between the rows of these two
  const float* values;                      // [tokens, value_dim]
  const float* decays;                      // [tokens]
  std::int64_t tokens, key_dim, value_dim;  // at least one token
  const float* state;                       // [key_dim, value_dim]: S before the first token
  float* new_state;                         // and after the last; may be state
  float* out;                               // [tokens, value_dim]
};

// Channels of Mamba, each a recurrence of its own, of all that a layer has. Of a channel with value x, step d
// = softplus(raw step), rates A < 0 [state_size], and the keys and queries that all channels share: s = e^(d
// A) s + d x k, then out = (s q + skip x) silu(gate).
struct ChannelScan {
  const float *steps, *values;  // [tokens, channels]; steps are raw
  const float *keys, *queries;  // [tokens, state_size]
  const float* gates;           // [tokens, channels], rows gates_stride apart
  std::int64_t gates_stride;
  const float *rates, *skip;                  // [state_size, channels], [channels]
  std::int64_t tokens, channels, state_size;  // at least one token
  const float* state;                         // [state_size, channels]: before the first token
  float* new_state;                           // and after the last; may be state
  float* out;                                 // [tokens, channels]
};

constexpr int kScoreFloors = 4;  // that one pass over scores takes at once

struct Ops {
  const char* name;  // "generic", "avx2", "avxvnni", "avx512", "avx512bf16", "amx", "neon", "neon_dotprod",
                     // "neon_i8mm"

  // out (64-byte aligned, activation_bytes long) from x [cols], but for kTiles. For kInt8 cols is a multiple
  // of 32.
  void (*prepare)(ActivationKind kind, const float* x, std::int64_t cols, void* out);

  // y[i * y_stride + r] = dot(row r of w, x_i) for first <= r < last, i < num_x <= kMaxDotRows.
  // x: prepared as activation_of(w.format), 64-byte aligned. The result for one x depends neither on the
  // other x nor on first and last.
  void (*dot_rows)(const Matrix& w, std::int64_t first, std::int64_t last, const void* x, int num_x, float* y,
                   std::int64_t y_stride);

  // The same for any num_x, x prepared as activation_of(w.format); scratch: matmul_scratch_bytes(w.cols),
  // 64-byte aligned, one for each thread. Same independence.
  void (*matmul_rows)(const Matrix& w, std::int64_t first, std::int64_t last, const void* x,
                      std::int64_t num_x, void* scratch, float* y, std::int64_t y_stride);

  // Both null, or for weights of bf16 and quantised ones: kTiles of num_x <= kTileActivations rows x[i]
  // [cols], num_x times activation_bytes long; and what matmul_rows does, of weights that are rounded to bf16
  // and any number of activations, those of each kTileActivations prepared together, in
  // tile_scratch_bytes(w.cols). Same independence.
  void (*prepare_tile)(const float* const* x, int num_x, std::int64_t cols, void* out);
  void (*multiply_tiles)(const Matrix& w, std::int64_t first, std::int64_t last, const void* x,
                         std::int64_t num_x, void* scratch, float* y, std::int64_t y_stride);

  // y[i * y_stride + c] += sum over all rows r of x[i * x_stride + r] * w[r][c], for first <= c < last, i <
  // num_x, in float32 and in the order of the rows, so that an element depends on nothing else of the call. w
  // is f32, f16 or bf16.
  void (*weighted_sum)(const Matrix& w, std::int64_t first, std::int64_t last, const float* x,
                       std::int64_t x_stride, std::int64_t num_x, float* y, std::int64_t y_stride);

  // out (may be gate) = act(gate) * up, or act(gate) where up is null (not for kSwigluClamped, kSiluClamped,
  // kClampedSilu and kSoftcapped, which alone have limits).
  void (*activate)(Activation act, Limits limits, const float* gate, const float* up, float* out,
                   std::int64_t count);
  // sum += x, which is f32, f16 or bf16.
  void (*add_stored)(Format format, const void* x, float* sum, std::int64_t count);
  // sum += scale * x, and sum += x * y: rounded after the multiplication and again after the addition.
  void (*add_scaled)(const float* x, float scale, float* sum, std::int64_t count);
  void (*add_product)(const float* x, const float* y, float* sum, std::int64_t count);
  // x *= sigmoid(gate).
  void (*sigmoid_mul)(const float* gate, float* x, std::int64_t count);

  // Decoding's other loops. rms_norm: out (may be x) = x / rms(x) * weight. layer_norm: out (may be x) =
  // (x - mean(x)) / std(x) * weight + bias.
  void (*rms_norm)(const float* x, const float* weight, float eps, std::int64_t count, float* out);
  void (*layer_norm)(const float* x, const float* weight, const float* bias, float eps, std::int64_t count,
                     float* out);
  void (*rotate)(float* x, const float* cos, const float* sin, std::int64_t half, Pairs pairs);
  // Numbers of a cache, f32, f16, bf16 or q8_0 (whole blocks, that of 32 numbers from their largest), and
  // back.
  void (*store_kv)(Format format, const float* x, std::int64_t count, void* out);
  void (*widen_kv)(Format format, const unsigned char* x, std::int64_t count, float* out);
  // x = softmax(scale * x), scale > 0; *sink, where it is not null, is a further element of what is in the
  // brackets.
  void (*softmax)(float* x, std::int64_t count, float scale, const float* sink);
  // The same block by block: scores [count] become e^(score - state.largest), with the state brought up to
  // date, and with it the sums [width] of what the scores before them weighed.
  void (*online_softmax)(float* scores, std::int64_t count, SoftmaxState& state, float* sums,
                         std::int64_t width);
  // x = most tanh(x / most).
  void (*cap)(float* x, std::int64_t count, float most);
  // states [num_queries] of the softmax over the task's positions (and sinks), and sums [num_queries,
  // head_dim] of the values, each weighed by e^(score - largest): an output is the sums divided by the total.
  void (*attend)(const AttendTask& task, SoftmaxState* states, float* sums);
  // Brings states [num_queries] up to date with the rows, and writes sums [num_queries, rank] as attend does.
  // Null where such attention is made of matmul_rows, online_softmax and weighted_sum.
  void (*attend_shared)(const SharedRowsTask& task, SoftmaxState* states, float* sums);
  // Values [count, dim] of bf16 for attend_shared, with zeros up to `width` columns, a multiple of 32, and to
  // a multiple of 64 rows; out, 64-byte aligned, has room for these. Null where attend_shared is.
  void (*pair_values)(const unsigned char* rows, std::int64_t dim, std::int64_t count, std::int64_t width,
                      unsigned char* out);
  void (*run_delta)(const DeltaTask& task);
  void (*run_scan)(const ScanTask& task);
  // The channels first <= c < last; equal in all builds.
  void (*run_channel_scan)(const ChannelScan& scan, std::int64_t first, std::int64_t last);

  // Of the scores [count >= 1] of a vocabulary, for the choice of a token; equal in all builds.
  // The largest of them, NaN where one is; weights = e^(factor (score - largest)), factor > 0, but 0 below
  // e^-80.
  float (*largest_score)(const float* scores, std::int64_t count);
  void (*weigh_scores)(const float* scores, std::int64_t count, float largest, float factor, float* weights);
  // sums[k] = the weights of all scores that are at least floors[k], k < num_floors <= kScoreFloors.
  void (*sum_from)(const float* scores, const float* weights, std::int64_t count, const float* floors,
                   int num_floors, double* sums);
  // Indices of the scores in [low, high), ascending, to found [count]; returns how many.
  std::int64_t (*scores_between)(const float* scores, std::int64_t count, float low, float high,
                                 std::int32_t* found);
};

std::size_t matmul_scratch_bytes(std::int64_t cols);
std::size_t tile_scratch_bytes(std::int64_t cols);
// Of attend_shared, whatever instruction set it is for.
std::size_t shared_rows_bytes(std::int64_t width, std::int64_t rank, bool has_values,
                              std::int64_t num_queries = kMaxSharing);

// The instruction sets that this build has and this CPU can run, best first; the last is "generic".
std::vector<std::string> available_isas();
// The table of `isa`, or of the best for "". Throws std::invalid_argument: unknown name (lists the known
// ones), or not supported by this CPU or build (says so).
const Ops& ops_for(const std::string& isa);

}  // namespace moeinf
