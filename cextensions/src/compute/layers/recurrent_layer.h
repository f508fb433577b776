// A layer with a state of fixed size, norm included, for any number of tokens and with any recurrence: it
// projects the normed tokens, convolves some channels of that, runs the recurrence of each head, and projects
// what comes out.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "compute/layout.h"
#include "moeinf/compute/kernels.h"
#include "moeinf/compute/layers/recurrent.h"
#include "tokens.h"

namespace moeinf {

constexpr std::int64_t kRecurrentTokens =
    64;  // at once of a long prompt: bounds the memory of the vectors below

// Of the tokens that go through together.
struct RecurrentVectors {
  float *normed, *mixed, *gated;  // [tokens, hidden], [tokens, channels], [tokens, what their heads give]
  std::vector<float*> projected;  // [tokens, rows] of each projection
  float* threads;                 // of each thread thread_floats
  std::int64_t thread_floats;

  float* scratch(int thread) const { return threads + thread * thread_floats; }
};

// Neighbouring channels that are convolved together.
struct Channels {
  std::int64_t first, count;
  const float* inputs;  // what a projection left of them for the first token
  std::int64_t stride;  // from one token to the next
  const float* norm;    // [count]: an RMS norm of what comes out; null: there is none
};

// Beside its Shape and its Weights a Recurrence has
//   rows(shape), width(shape)     how many numbers of a token each projection gives, and all heads together
//   thread_floats(shape, tokens)  what one thread needs for some channels, and later for a head
//   projections(weights), conv_bias(weights)  the latter null where channels have none
//   in_bias(weights), out_bias(weights)       of the first projection and of the output; null: they have none
//   channels_eps, residual, replaces          of the norms of channels, and as in AttentionShape
//   num_tasks(), each_part(task, call)        calls call(Channels) for all channels of a task
//   run_head(head, stretch, scratch)          from mixed channels to what a head gives of each token
//   finish(row)                               what is left to do with all that the heads of a token give
template <class Recurrence>
class RecurrentPass {
 public:
  using Shape = typename Recurrence::Shape;
  using Weights = typename Recurrence::Weights;

  RecurrentPass(Kernels& kernels, const Shape& shape, const Weights& weights,
                Span<const RecurrentStretch> stretches, RowSpan<float> x)
      : kernels_(kernels),
        s_(shape),
        w_(weights),
        stretches_(stretches),
        x_(x),
        tokens_(x.rows),
        projections_(Recurrence::projections(weights)),
        memory_(kernels.workspace()),
        v_(take_vectors(memory_, shape, rows_of(projections_), x.rows, kernels.pool().num_threads())),
        recurrence_(kernels.ops(), shape, weights, v_) {}

  static RecurrentVectors take_vectors(Workspace::Frame& memory, const Shape& s,
                                       const std::vector<std::int64_t>& rows, std::int64_t tokens,
                                       int num_threads) {
    RecurrentVectors v;
    v.normed = memory.take<float>(tokens * s.hidden);
    v.mixed = memory.take<float>(tokens * s.channels());
    v.gated = memory.take<float>(tokens * Recurrence::width(s));
    v.thread_floats = Recurrence::thread_floats(s, tokens);
    v.threads = memory.take<float>(v.thread_floats * num_threads);
    for (const std::int64_t each : rows) v.projected.push_back(memory.take<float>(tokens * each));
    return v;
  }

  void run() {
    const Ops& ops = kernels_.ops();
    norm_tokens(kernels_, {w_.norm, nullptr, s_.norm_eps}, x_, v_.normed);
    kernels_.linears(projections_, {v_.normed, tokens_, s_.hidden}, v_.projected);
    const float *const in_bias = Recurrence::in_bias(w_), *const out_bias = Recurrence::out_bias(w_);
    if (in_bias != nullptr) {
      const std::int64_t rows = projections_[0].rows;
      each_token(kernels_, tokens_,
                 [&](std::int64_t t) { ops.add_scaled(in_bias, 1, v_.projected[0] + t * rows, rows); });
    }
    each_stretch(
        recurrence_.num_tasks(), [&](std::int64_t task, const RecurrentStretch& stretch, float* scratch) {
          recurrence_.each_part(task, [&](const Channels& part) { convolve(part, stretch, scratch); });
        });
    each_stretch(s_.state().heads, [&](std::int64_t head, const RecurrentStretch& stretch, float* scratch) {
      recurrence_.run_head(head, stretch, scratch);
    });
    const std::int64_t width = Recurrence::width(s_);
    if constexpr (Recurrence::kFinishes) {
      each_token(kernels_, tokens_, [&](std::int64_t t) { recurrence_.finish(v_.gated + t * width); });
    }
    float* const out = v_.normed;
    kernels_.linear(w_.output, {v_.gated, tokens_, width}, out);
    each_token(kernels_, tokens_, [&](std::int64_t t) {
      if (Recurrence::replaces(s_)) std::fill_n(x_.row(t), s_.hidden, 0.0f);
      if (out_bias != nullptr) ops.add_scaled(out_bias, 1, out + t * s_.hidden, s_.hidden);
      ops.add_scaled(out + t * s_.hidden, Recurrence::residual(s_), x_.row(t), s_.hidden);
    });
  }

 private:
  static std::vector<std::int64_t> rows_of(const std::vector<Matrix>& matrices) {
    std::vector<std::int64_t> rows;
    for (const Matrix& matrix : matrices) rows.push_back(matrix.rows);
    return rows;
  }

  // call(task, stretch, scratch) for each of so many tasks of each stretch: in order, of those that go on
  // with what the one before leaves.
  template <class Call>
  void each_stretch(std::int64_t tasks, const Call& call) const {
    const auto count = static_cast<std::int64_t>(stretches_.size());
    kernels_.pool().run(tasks * count, [&](std::int64_t index, int thread) {
      auto at = static_cast<std::size_t>(index % count);
      if (goes_on(at)) return;
      do {
        call(index / count, stretches_[at], v_.scratch(thread));
      } while (++at < stretches_.size() && goes_on(at));
    });
  }

  bool goes_on(std::size_t stretch) const {
    return stretch > 0 && stretches_[stretch].states.heads == stretches_[stretch - 1].states.new_heads;
  }

  // Silu of each channel's bias and weighted sum over its last `kernel` tokens, then the norm.
  void convolve(const Channels& part, const RecurrentStretch& stretch, float* scratch) const {
    const Ops& ops = kernels_.ops();
    const std::int64_t before = s_.kernel - 1, channels = s_.channels();
    const float* const bias = Recurrence::conv_bias(w_);
    const std::size_t num_bytes = static_cast<std::size_t>(part.count) * sizeof(float);
    const float* const inputs = part.inputs + stretch.first * part.stride;
    float *const sums = scratch, *const activated = scratch + part.count;
    const auto seen = [&](std::int64_t t) {  // inputs, the first of them left by earlier tokens
      return t < before ? stretch.states.conv + t * channels + part.first
                        : inputs + (t - before) * part.stride;
    };
    for (std::int64_t t = 0; t < stretch.tokens; ++t) {
      float* const out = v_.mixed + (stretch.first + t) * channels + part.first;
      if (bias == nullptr) {
        std::memset(sums, 0, num_bytes);
      } else {
        std::memcpy(sums, bias + part.first, num_bytes);
      }
      for (std::int64_t i = 0; i < s_.kernel; ++i)
        ops.add_product(seen(t + i), w_.taps + i * channels + part.first, sums, part.count);
      ops.activate(Activation::kSilu, 0, sums, nullptr, part.norm == nullptr ? out : activated, part.count);
      if (part.norm != nullptr)
        ops.rms_norm(activated, part.norm, Recurrence::channels_eps(s_), part.count, out);
    }
    for (std::int64_t i = 0; i < before; ++i)  // ascending: the two states may be one
      std::memmove(stretch.states.new_conv + i * channels + part.first, seen(stretch.tokens + i), num_bytes);
  }

  Kernels& kernels_;
  const Shape& s_;
  const Weights& w_;
  const Span<const RecurrentStretch> stretches_;
  const RowSpan<float> x_;
  const std::int64_t tokens_;
  const std::vector<Matrix> projections_;
  Workspace::Frame memory_;
  const RecurrentVectors v_;
  const Recurrence recurrence_;
};

template <class Recurrence>
void run_recurrent(Kernels& kernels, const typename Recurrence::Shape& shape,
                   const typename Recurrence::Weights& weights, Span<const RecurrentStretch> stretches,
                   RowSpan<float> x) {
  if (x.rows <= kRecurrentTokens) {
    RecurrentPass<Recurrence>(kernels, shape, weights, stretches, x).run();
    return;
  }
  for (const RecurrentStretch& whole : stretches) {
    RecurrentStretch part = {whole.states, 0, 0};
    for (std::int64_t start = 0; start < whole.tokens; start += kRecurrentTokens) {
      part.tokens = std::min(kRecurrentTokens, whole.tokens - start);
      RecurrentPass<Recurrence>(kernels, shape, weights, {&part, 1}, x.part(whole.first + start, part.tokens))
          .run();
      part.states.conv = whole.states.new_conv;
      part.states.heads = whole.states.new_heads;
    }
  }
}

template <class Recurrence>
std::size_t recurrent_workspace_bytes(const typename Recurrence::Shape& shape, const PassShape& pass) {
  const std::int64_t tokens = std::min(pass.tokens, kRecurrentTokens);
  Workspace::Frame memory;
  RecurrentPass<Recurrence>::take_vectors(memory, shape, Recurrence::rows(shape), tokens, pass.num_threads);
  return memory.num_bytes() + prepared_bytes(pass, tokens, std::max(shape.hidden, Recurrence::width(shape)));
}

}  // namespace moeinf
