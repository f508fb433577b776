#include "moeinf/kernels/attention.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "attend_many.h"

namespace moeinf {
namespace {

constexpr int kScratch = 16;                 // a number that no operation called from here uses
constexpr std::int64_t kTokensAtOnce = 128;  // of a long prompt: bounds the memory of the vectors below

// The tokens' vectors of one pass, in the scratch memory of the kernels.
struct Vectors {
  float *normed, *query, *key, *value, *mixed, *out;
};

Vectors scratch_vectors(Kernels& kernels, const AttentionShape& s, std::int64_t tokens) {
  const std::int64_t queries = s.num_heads * s.head_dim, keys = s.num_kv_heads * s.head_dim;
  const std::int64_t sizes[] = {s.hidden, queries, keys, keys, queries, s.hidden};
  std::int64_t starts[6], total = 0;
  for (int i = 0; i < 6; ++i) {
    starts[i] = total;
    total += (sizes[i] * tokens + 15) / 16 * 16;
  }
  auto* first =
      static_cast<float*>(kernels.scratch(kScratch, static_cast<std::size_t>(total) * sizeof(float)));
  return {first + starts[0], first + starts[1], first + starts[2],
          first + starts[3], first + starts[4], first + starts[5]};
}

void add_bias(float* x, const float* bias, std::int64_t count) {
  for (std::int64_t i = 0; bias != nullptr && i < count; ++i) x[i] += bias[i];
}

void clamp(float* x, float limit, std::int64_t count) {
  for (std::int64_t i = 0; limit > 0 && i < count; ++i) x[i] = std::min(std::max(x[i], -limit), limit);
}

// Bias, norm, clamp and rotary positions of the heads of one token, in the order of the families that have
// them.
void finish_heads(const Ops& ops, const AttentionShape& s, const float* bias, const float* norm,
                  const float* cos, const float* sin, std::int64_t heads, float* x) {
  add_bias(x, bias, heads * s.head_dim);
  if (s.head_norm == HeadNorm::kAll) ops.rms_norm(x, norm, s.norm_eps, heads * s.head_dim, x);
  clamp(x, s.clip, heads * s.head_dim);
  for (std::int64_t h = 0; h < heads; ++h) {
    float* head = x + h * s.head_dim;
    if (s.head_norm == HeadNorm::kEach) ops.rms_norm(head, norm, s.norm_eps, s.head_dim, head);
    ops.rotate(head, cos, sin, s.head_dim / 2);
  }
}

void store(const Ops& ops, const AttentionShape& s, const KVView& kv, std::int64_t position, const float* key,
           const float* value) {
  const std::size_t width = row_bytes(kv.format, 1);
  for (std::int64_t h = 0; h < s.num_kv_heads; ++h) {
    const std::size_t at = static_cast<std::size_t>((h * kv.capacity + position) * s.head_dim) * width;
    ops.store_kv(kv.format, key + h * s.head_dim, s.head_dim, static_cast<unsigned char*>(kv.keys) + at);
    ops.store_kv(kv.format, value + h * s.head_dim, s.head_dim, static_cast<unsigned char*>(kv.values) + at);
  }
}

// For a few tokens. One task is at most kMaxGroup query heads of one token that share a key/value head.
void attend_few(Kernels& kernels, const AttentionShape& s, const KVView& kv, std::int64_t length,
                const float* query, float* mixed, std::int64_t tokens) {
  const std::int64_t group = s.num_heads / s.num_kv_heads, cuts = (group + kMaxGroup - 1) / kMaxGroup;
  const float scale = 1.0f / std::sqrt(static_cast<float>(s.head_dim));
  kernels.pool().run(tokens * s.num_kv_heads * cuts, [&](std::int64_t index, int) {
    const std::int64_t cut = index % cuts, head = index / cuts % s.num_kv_heads,
                       token = index / cuts / s.num_kv_heads;
    const std::int64_t first_query = head * group + cut * kMaxGroup;
    const std::int64_t offset = (token * s.num_heads + first_query) * s.head_dim;
    const std::size_t row = row_bytes(kv.format, head * kv.capacity * s.head_dim);
    AttendTask task;
    task.queries = query + offset;
    task.num_queries = static_cast<int>(std::min<std::int64_t>(kMaxGroup, group - cut * kMaxGroup));
    task.keys = static_cast<const unsigned char*>(kv.keys) + row;
    task.values = static_cast<const unsigned char*>(kv.values) + row;
    task.format = kv.format;
    task.last = length + token + 1;
    task.first = s.window > 0 ? std::max<std::int64_t>(0, task.last - s.window) : 0;
    task.head_dim = s.head_dim;
    task.scale = scale;
    kernels.ops().attend(task, mixed + offset);
  });
}

void pass(Kernels& kernels, const AttentionShape& s, const AttentionWeights& w, const KVView& kv,
          std::int64_t length, const float* cos, const float* sin, float* x, std::int64_t tokens) {
  const Ops& ops = kernels.ops();
  const Vectors v = scratch_vectors(kernels, s, tokens);
  const std::int64_t queries = s.num_heads * s.head_dim, keys = s.num_kv_heads * s.head_dim,
                     half = s.head_dim / 2;
  const auto each_token = [&](const auto& task) {
    if (tokens <= kMaxDotRows) {
      for (std::int64_t t = 0; t < tokens; ++t) task(t);
    } else {
      kernels.pool().run(tokens, [&](std::int64_t t, int) { task(t); });
    }
  };
  each_token([&](std::int64_t t) {
    ops.rms_norm(x + t * s.hidden, w.norm, s.norm_eps, s.hidden, v.normed + t * s.hidden);
  });
  kernels.linears({w.q, w.k, w.v}, v.normed, tokens, {v.query, v.key, v.value});
  each_token([&](std::int64_t t) {
    float* const key = v.key + t * keys;
    float* const value = v.value + t * keys;
    finish_heads(ops, s, w.q_bias, w.q_norm, cos + t * half, sin + t * half, s.num_heads,
                 v.query + t * queries);
    finish_heads(ops, s, w.k_bias, w.k_norm, cos + t * half, sin + t * half, s.num_kv_heads, key);
    add_bias(value, w.v_bias, keys);
    clamp(value, s.clip, keys);
    store(ops, s, kv, length + t, key, value);
  });
  (tokens <= kMaxDotRows ? attend_few : attend_many)(kernels, s, kv, length, v.query, v.mixed, tokens);
  kernels.linear(w.o, v.mixed, tokens, v.out);
  each_token([&](std::int64_t t) {
    add_bias(v.out + t * s.hidden, w.o_bias, s.hidden);
    ops.add_scaled(v.out + t * s.hidden, 1.0f, x + t * s.hidden, s.hidden);
  });
}

}  // namespace

void attend(Kernels& kernels, const AttentionShape& s, const AttentionWeights& w, const KVView& kv,
            std::int64_t length, const float* cos, const float* sin, float* x, std::int64_t tokens) {
  const std::int64_t half = s.head_dim / 2;
  for (std::int64_t start = 0; start < tokens; start += kTokensAtOnce) {
    pass(kernels, s, w, kv, length + start, cos + start * half, sin + start * half, x + start * s.hidden,
         std::min(kTokensAtOnce, tokens - start));
  }
}

}  // namespace moeinf
