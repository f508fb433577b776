#include "moeinf/compute/layers/attention.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <stdexcept>

#include "attend_chosen.h"
#include "attend_few.h"
#include "attend_many.h"
#include "softplus.h"
#include "tokens.h"

namespace moeinf {
namespace {

// The vectors of the tokens that go through together.
struct Vectors {
  float *normed, *query, *key, *value, *mixed, *out;
  float* projected;  // of q: the queries themselves, unless each has its gate behind it
  float* gates;      // of a matrix of their own
  float* narrow;     // values, and then the heads' outputs, where values are narrower than keys
};

Vectors take_vectors(Workspace::Frame& memory, const AttentionShape& s, std::int64_t tokens) {
  const std::int64_t queries = s.num_heads * s.head_dim, keys = s.num_kv_heads * s.head_dim;
  Vectors v;
  v.normed = memory.take<float>(tokens * s.hidden);
  v.query = memory.take<float>(tokens * queries);
  v.key = memory.take<float>(tokens * keys);
  v.value = memory.take<float>(tokens * keys);
  v.mixed = memory.take<float>(tokens * queries);
  v.out = memory.take<float>(tokens * s.hidden);
  v.projected = s.gated ? memory.take<float>(tokens * 2 * queries) : v.query;
  v.gates = s.gate_apart ? memory.take<float>(tokens * queries) : nullptr;
  v.narrow = s.value_dim > 0 ? memory.take<float>(tokens * s.num_heads * s.value_dim) : nullptr;
  return v;
}

// Heads of `from` numbers -> heads of `to` numbers: what is missing is 0, what is too much is left out.
void resize_heads(const float* x, std::int64_t from, std::int64_t heads, std::int64_t to, float* out) {
  const std::int64_t both = std::min(from, to);
  for (std::int64_t h = 0; h < heads; ++h) {
    std::copy_n(x + h * from, both, out + h * to);
    std::fill_n(out + h * to + both, to - both, 0.0f);
  }
}

void add_bias(float* x, const float* bias, std::int64_t count) {
  for (std::int64_t i = 0; bias != nullptr && i < count; ++i) x[i] += bias[i];
}

void clamp(float* x, float limit, std::int64_t count) {
  for (std::int64_t i = 0; limit > 0 && i < count; ++i) x[i] = std::min(std::max(x[i], -limit), limit);
}

// Norm, clamp and rotary positions of the heads of one token, in the order of the families that have them.
void finish_heads(const Ops& ops, const AttentionShape& s, const float* norm, const Turns& turns,
                  std::int64_t token, std::int64_t heads, float* x) {
  if (s.head_norm == HeadNorm::kAll) ops.rms_norm(x, norm, s.norm_eps, heads * s.head_dim, x);
  clamp(x, s.clip, heads * s.head_dim);
  for (std::int64_t h = 0; h < heads; ++h) {
    float* head = x + h * s.head_dim;
    if (s.head_norm == HeadNorm::kEach) ops.rms_norm(head, norm, s.norm_eps, s.head_dim, head);
    ops.rotate(head, turns.cos.row(token), turns.sin.row(token), s.rotary_pairs, s.pairs);
    if (s.head_norm == HeadNorm::kEachTurned) ops.rms_norm(head, norm, s.norm_eps, s.head_dim, head);
  }
}

void sharpen(const AttentionShape& s, std::int64_t position, float* query) {
  if (s.sharpness == 0) return;
  const std::int64_t number = position + s.sharp_offset;
  const float factor = s.sharp_power
                           ? std::exp(s.sharpness * std::log1p(static_cast<float>(number) / s.sharp_length))
                           : 1 + s.sharpness * std::log1p(static_cast<float>(number / s.sharp_length));
  for (std::int64_t i = 0; i < s.num_heads * s.head_dim; ++i) query[i] *= factor;
}

// The queries of one token, from rows that are a query and a gate in turn.
void take_queries(const AttentionShape& s, const float* projected, float* query) {
  for (std::int64_t h = 0; h < s.num_heads; ++h) {
    std::memcpy(query + h * s.head_dim, projected + 2 * h * s.head_dim,
                static_cast<std::size_t>(s.head_dim) * sizeof(float));
  }
}

void apply_gates(const Ops& ops, const AttentionShape& s, const float* projected, float* mixed) {
  for (std::int64_t h = 0; h < s.num_heads; ++h) {
    ops.sigmoid_mul(projected + (2 * h + 1) * s.head_dim, mixed + h * s.head_dim, s.head_dim);
  }
}

// gates: `each` of a head, head_dim or one; bias, which may be null, is added to them.
void apply_gates_apart(const Ops& ops, const AttentionShape& s, std::int64_t each, const float* bias,
                       float* gates, float* mixed) {
  for (std::int64_t i = 0; bias != nullptr && i < s.num_heads * each; ++i) gates[i] += bias[i / each];
  if (each == s.head_dim && !s.softplus_gates) return ops.sigmoid_mul(gates, mixed, s.num_heads * s.head_dim);
  for (std::int64_t i = 0; i < s.num_heads * s.head_dim; ++i) {
    const float gate = gates[each == s.head_dim ? i : i / s.head_dim];
    mixed[i] *= s.softplus_gates ? softplus(gate) : 1 / (1 + std::exp(-gate));
  }
}

void store(const Ops& ops, const AttentionShape& s, const KVView& kv, std::int64_t position, const float* key,
           const float* value) {
  for (std::int64_t h = 0; h < s.num_kv_heads; ++h) {
    const std::size_t at = row_bytes(kv.format, (h * kv.capacity + position) * s.head_dim);
    ops.store_kv(kv.format, key + h * s.head_dim, s.head_dim, static_cast<unsigned char*>(kv.keys) + at);
    ops.store_kv(kv.format, value + h * s.head_dim, s.head_dim, static_cast<unsigned char*>(kv.values) + at);
  }
}

// What of a pass is done: all of it, or first the keys and values of all tokens, then the rest.
enum class Steps { kAll, kKeys, kQueries };

// ends, chosen, steps but kAll: of a single stretch.
void pass(Kernels& kernels, const AttentionShape& s, const AttentionWeights& w, Span<const Stretch> stretches,
          const Turns& turns, RowSpan<float> x, const std::int64_t* ends, const ChosenPositions& chosen,
          Steps steps) {
  const Ops& ops = kernels.ops();
  const std::int64_t tokens = x.rows;
  Workspace::Frame memory(kernels.workspace());
  const Vectors v = take_vectors(memory, s, tokens);
  const Places places(stretches);
  const auto place = [&](std::int64_t t) { return places.of[static_cast<std::size_t>(t)]; };
  const std::int64_t queries = s.num_heads * s.head_dim, keys = s.num_kv_heads * s.head_dim;
  const auto each = [&](const auto& task) { each_token(kernels, tokens, task); };
  norm_tokens(kernels, {w.norm, w.norm_bias, s.front_eps}, x, v.normed);
  const RowSpan<const float> normed = {v.normed, tokens, s.hidden};
  const auto finish_query = [&](std::int64_t t) {
    float* const query = v.query + t * queries;
    add_bias(v.projected + t * w.q.rows, w.q_bias, w.q.rows);
    if (s.gated) take_queries(s, v.projected + t * w.q.rows, query);
    finish_heads(ops, s, w.q_norm, turns, t, s.num_heads, query);
    sharpen(s, place(t).position, query);
  };
  const auto finish_key = [&](std::int64_t t) {
    float* const key = v.key + t * keys;
    float* const value = v.value + t * keys;
    add_bias(key, w.k_bias, keys);
    finish_heads(ops, s, w.k_norm, turns, t, s.num_kv_heads, key);
    if (v.narrow == nullptr) {
      add_bias(value, w.v_bias, keys);
    } else {
      add_bias(v.narrow + t * w.v.rows, w.v_bias, w.v.rows);
      resize_heads(v.narrow + t * w.v.rows, s.value_dim, s.num_kv_heads, s.head_dim, value);
    }
    clamp(value, s.clip, keys);
    for (std::int64_t h = 0; w.v_norm != nullptr && h < s.num_kv_heads; ++h) {
      float* const head = value + h * s.head_dim;
      ops.rms_norm(head, w.v_norm, s.norm_eps, s.head_dim, head);
    }
    store(ops, s, *place(t).kv, place(t).position, key, value);
  };
  float* const values = v.narrow == nullptr ? v.value : v.narrow;
  if (steps == Steps::kAll) {
    kernels.linears({w.q, w.k, w.v}, normed, {v.projected, v.key, values});
  } else if (steps == Steps::kKeys) {
    kernels.linears({w.k, w.v}, normed, {v.key, values});
  } else {
    kernels.linear(w.q, normed, v.projected);
  }
  if (s.gate_apart && steps != Steps::kKeys) kernels.linear(w.gate, normed, v.gates);
  each([&](std::int64_t t) {
    if (steps != Steps::kKeys) finish_query(t);
    if (steps != Steps::kQueries) finish_key(t);
  });
  if (steps == Steps::kKeys) return;
  if (stretches.size() > 1) {  // each a pass of few tokens
    for (std::int64_t start = 0; start < tokens; start += kFewAttending) {
      const std::int64_t count = std::min(kFewAttending, tokens - start);
      attend_few(kernels, s, w.sinks, places.part(start, count), v.query + start * queries,
                 v.mixed + start * queries);
    }
  } else {
    const auto [kv, length, of_one] = stretches[0];
    const std::int64_t seeing_all = of_one - chosen.tokens;
    if (ends == nullptr && kernels.tokens_of_pass(tokens) <= kFewAttending) {
      if (seeing_all > 0) attend_few(kernels, s, w.sinks, places.part(0, seeing_all), v.query, v.mixed);
    } else if (seeing_all > 0) {
      attend_many(kernels, s, w.sinks, kv, length, v.query, v.mixed, seeing_all, ends);
    }
    attend_chosen(kernels, s, w.sinks, kv, chosen, v.query + seeing_all * queries,
                  v.mixed + seeing_all * queries);
  }
  if (s.gated) {
    each([&](std::int64_t t) { apply_gates(ops, s, v.projected + t * w.q.rows, v.mixed + t * queries); });
  }
  if (s.gate_apart) {
    each([&](std::int64_t t) {
      apply_gates_apart(ops, s, w.gate.rows / s.num_heads, w.gate_bias, v.gates + t * w.gate.rows,
                        v.mixed + t * queries);
    });
  }
  if (v.narrow != nullptr) {
    each([&](std::int64_t t) {
      resize_heads(v.mixed + t * queries, s.head_dim, s.num_heads, s.value_dim, v.narrow + t * w.o.cols);
    });
  }
  kernels.linear(w.o, {v.narrow == nullptr ? v.mixed : v.narrow, tokens, w.o.cols}, v.out);
  each([&](std::int64_t t) {
    float* const out = v.out + t * s.hidden;
    add_bias(out, w.o_bias, s.hidden);
    if (w.output_norm != nullptr) ops.rms_norm(out, w.output_norm, s.norm_eps, s.hidden, out);
    if (s.replaces) std::fill_n(x.row(t), s.hidden, 0.0f);
    ops.add_scaled(out, s.residual, x.row(t), s.hidden);
  });
}

}  // namespace

void attend(Kernels& kernels, const AttentionShape& s, const AttentionWeights& w, const KVView& kv,
            std::int64_t length, const Turns& turns, RowSpan<float> x, Span<const std::int64_t> ends,
            const ChosenPositions& chosen) {
  const std::int64_t tokens = x.rows, first = tokens - chosen.tokens;  // that chooses
  const std::int64_t at_once = most_at_once(s);
  const auto passes = [&](Steps steps) {
    for (std::int64_t start = 0; start < tokens; start += at_once) {
      const std::int64_t part = std::min(at_once, tokens - start);
      const std::int64_t choosing = std::clamp<std::int64_t>(start + part - first, 0, part);
      ChosenPositions of_part{nullptr, choosing, chosen.each, chosen.groups};
      if (choosing > 0)
        of_part.positions =
            chosen.positions + (start + part - choosing - first) * chosen.groups * chosen.each;
      const Stretch stretch = {kv, length + start, part};
      pass(kernels, s, w, {&stretch, 1}, turns.part(start, part), x.part(start, part),
           ends.empty() ? nullptr : ends.data() + start, of_part, steps);
    }
  };
  if (ends.empty()) return passes(Steps::kAll);
  passes(Steps::kKeys);
  passes(Steps::kQueries);
}

void attend_beside(Kernels& kernels, const AttentionShape& s, const AttentionWeights& w,
                   Span<const Stretch> stretches, const Turns& turns, RowSpan<float> x) {
  std::int64_t tokens = 0;
  for (const Stretch& stretch : stretches) tokens += stretch.tokens;
  if (tokens != x.rows || tokens < 1 || tokens > kMostBeside)
    throw std::invalid_argument(
        "the rows are not those of the sequences, or too many to go beside each other");
  pass(kernels, s, w, stretches, turns, x, nullptr, {}, Steps::kAll);
}

void attend_given(Kernels& kernels, const AttentionShape& s, const GivenHeads& heads, const KVView& kv,
                  std::int64_t length, const Turns& turns, RowSpan<float> mixed) {
  const Ops& ops = kernels.ops();
  const std::int64_t tokens = mixed.rows, queries = mixed.cols, keys = s.num_kv_heads * s.head_dim;
  const bool few = kernels.tokens_of_pass(tokens) <= kFewAttending;
  for (std::int64_t start = 0; start < tokens; start += kMostTokens) {
    const std::int64_t part = std::min(kMostTokens, tokens - start);
    kernels.pool().run(part, [&](std::int64_t index, int) {
      const std::int64_t t = start + index;
      const auto rotate = [&](float* x, std::int64_t count) {
        for (std::int64_t h = 0; h < count; ++h) {
          ops.rotate(x + h * s.head_dim, turns.cos.row(t), turns.sin.row(t), s.rotary_pairs, s.pairs);
        }
      };
      rotate(heads.queries + t * queries, s.num_heads);
      rotate(heads.keys + t * keys, s.num_kv_heads);
      store(ops, s, kv, length + t, heads.keys + t * keys, heads.values + t * keys);
    });
    OfQueries own = heads.own;
    if (own.sinks != nullptr) own.sinks += start * s.num_heads;
    if (own.relative.states != nullptr) own.relative.states += start * s.num_heads * own.relative.width;
    const float* const query = heads.queries + start * queries;
    float* const out = mixed.row(start);
    if (few) {
      const Stretch stretch = {kv, length + start, part};
      attend_few(kernels, s, nullptr, Places({&stretch, 1}).part(0, part), query, out, own);
    } else {
      attend_many(kernels, s, nullptr, kv, length + start, query, out, part, nullptr, own);
    }
  }
}

std::size_t attention_workspace_bytes(const AttentionShape& s, const PassShape& pass) {
  const std::int64_t tokens = std::min(pass.tokens, most_at_once(s));
  Workspace::Frame memory;
  take_vectors(memory, s, tokens);
  const std::size_t inputs = prepared_bytes(pass, tokens, std::max(s.hidden, s.num_heads * s.head_dim));
  const std::size_t few = few_workspace_bytes(s, pass);
  const std::size_t many = tokens > kFewAttending || s.ahead > 0 ? many_workspace_bytes(s, pass) : 0;
  const std::size_t picked = s.most_chosen > 0 ? chosen_workspace_bytes(s, pass) : 0;
  return memory.num_bytes() + std::max({inputs, few, many, picked});
}

}  // namespace moeinf
