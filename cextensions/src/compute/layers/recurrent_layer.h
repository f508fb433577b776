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
//   channels_eps, residual, replaces          of the norms of channels, and as in AttentionShape
//   num_tasks(), each_part(task, call)        calls call(Channels) for all channels of a task
//   run_head(head, states, scratch)           from mixed channels to what a head gives of each token
//   finish(row)                               what is left to do with all that the heads of a token give
template <class Recurrence>
class RecurrentPass {
 public:
  using Shape = typename Recurrence::Shape;
  using Weights = typename Recurrence::Weights;

  RecurrentPass(Kernels& kernels, const Shape& shape, const Weights& weights, const RecurrentStates& states,
                RowSpan<float> x)
      : kernels_(kernels),
        s_(shape),
        w_(weights),
        states_(states),
        x_(x),
        tokens_(x.rows),
        projections_(Recurrence::projections(weights)),
        memory_(kernels.workspace()),
        v_(take_vectors(memory_, shape, rows_of(projections_), x.rows, kernels.pool().num_threads())),
        recurrence_(kernels.ops(), shape, weights, v_, x.rows) {}

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
    kernels_.pool().run(recurrence_.num_tasks(), [&](std::int64_t task, int thread) {
      recurrence_.each_part(task, [&](const Channels& part) { convolve(part, v_.scratch(thread)); });
    });
    kernels_.pool().run(s_.state().heads, [&](std::int64_t head, int thread) {
      recurrence_.run_head(head, states_, v_.scratch(thread));
    });
    const std::int64_t width = Recurrence::width(s_);
    if constexpr (Recurrence::kFinishes) {
      each_token(kernels_, tokens_, [&](std::int64_t t) { recurrence_.finish(v_.gated + t * width); });
    }
    float* const out = v_.normed;
    kernels_.linear(w_.output, {v_.gated, tokens_, width}, out);
    each_token(kernels_, tokens_, [&](std::int64_t t) {
      if (Recurrence::replaces(s_)) std::fill_n(x_.row(t), s_.hidden, 0.0f);
      ops.add_scaled(out + t * s_.hidden, Recurrence::residual(s_), x_.row(t), s_.hidden);
    });
  }

 private:
  static std::vector<std::int64_t> rows_of(const std::vector<Matrix>& matrices) {
    std::vector<std::int64_t> rows;
    for (const Matrix& matrix : matrices) rows.push_back(matrix.rows);
    return rows;
  }

  // Silu of each channel's bias and weighted sum over its last `kernel` tokens, then the norm.
  void convolve(const Channels& part, float* scratch) const {
    const Ops& ops = kernels_.ops();
    const std::int64_t before = s_.kernel - 1, channels = s_.channels();
    const float* const bias = Recurrence::conv_bias(w_);
    const std::size_t num_bytes = static_cast<std::size_t>(part.count) * sizeof(float);
    float *const sums = scratch, *const activated = scratch + part.count;
    const auto seen = [&](std::int64_t t) {  // inputs, the first of them left by earlier tokens
      return t < before ? states_.conv + t * channels + part.first : part.inputs + (t - before) * part.stride;
    };
    for (std::int64_t t = 0; t < tokens_; ++t) {
      float* const out = v_.mixed + t * channels + part.first;
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
      std::memmove(states_.new_conv + i * channels + part.first, seen(tokens_ + i), num_bytes);
  }

  Kernels& kernels_;
  const Shape& s_;
  const Weights& w_;
  const RecurrentStates states_;
  const RowSpan<float> x_;
  const std::int64_t tokens_;
  const std::vector<Matrix> projections_;
  Workspace::Frame memory_;
  const RecurrentVectors v_;
  const Recurrence recurrence_;
};

template <class Recurrence>
void run_recurrent(Kernels& kernels, const typename Recurrence::Shape& shape,
                   const typename Recurrence::Weights& weights, const RecurrentStates& states,
                   RowSpan<float> x) {
  RecurrentStates from = states;
  for (std::int64_t start = 0; start < x.rows; start += kRecurrentTokens) {
    const std::int64_t count = std::min(kRecurrentTokens, x.rows - start);
    RecurrentPass<Recurrence>(kernels, shape, weights, from, x.part(start, count)).run();
    from.conv = states.new_conv;
    from.heads = states.new_heads;
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
