#include "moeinf/compute/layers/index_keys.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

namespace moeinf {
namespace {

constexpr std::int64_t kTaskKeys = 1024;  // of a task: the second-level cache has them for the next token
constexpr std::int64_t kKeysAtOnce = 128;
constexpr std::int64_t kScoresAtOnce = 1 << 21;  // bounds the memory of tokens that choose together

// What one thread holds: the heads of a token as they are multiplied, their products with some keys, and
// these.
struct Held {
  unsigned char* heads;
  float* products;  // [num_heads, kKeysAtOnce]
  float* keys;      // [kKeysAtOnce, head_dim], where these lie apart
};

std::size_t head_bytes(std::int64_t head_dim) { return activation_bytes(ActivationKind::kF32, head_dim); }

std::size_t thread_bytes(std::int64_t num_heads, std::int64_t head_dim) {
  const auto products = sizeof(float) * static_cast<std::size_t>(kKeysAtOnce * (num_heads + head_dim));
  return static_cast<std::size_t>(num_heads) * head_bytes(head_dim) + products;
}

unsigned char* take_threads(Workspace::Frame& memory, std::int64_t num_heads, std::int64_t head_dim,
                            int num_threads) {
  return static_cast<unsigned char*>(
      memory.take_bytes(thread_bytes(num_heads, head_dim) * static_cast<std::size_t>(num_threads)));
}

class KeyScores {
 public:
  KeyScores(Kernels& kernels, const IndexQueries& queries, const IndexKeys& keys)
      : kernels_(kernels),
        q_(queries),
        keys_(keys),
        dim_(queries.head_dim()),
        memory_(kernels.workspace()),
        threads_(take_threads(memory_, q_.num_heads, dim_, kernels.pool().num_threads())),
        ones_(memory_.take<float>(q_.num_heads)) {
    std::fill_n(ones_, q_.num_heads, 1.0f);
  }

  // Of the tokens from `first` on, one for each row of scores; seen: of these.
  void score(std::int64_t first, const std::int64_t* seen, RowSpan<float> scores) {
    const std::int64_t most = scores.rows == 0 ? 0 : *std::max_element(seen, seen + scores.rows);
    const std::int64_t blocks = (most + kTaskKeys - 1) / kTaskKeys;
    kernels_.pool().run(blocks * scores.rows, [&](std::int64_t task, int thread) {
      const std::int64_t token = task % scores.rows, begin = task / scores.rows * kTaskKeys;
      const std::int64_t end = std::min(seen[token], begin + kTaskKeys);
      if (begin < end) score(first + token, begin, end, scores.row(token), held_by(thread));
    });
  }

  // The same of blocks, of all heads of these tokens.
  void score_blocks(const std::int64_t* seen, std::int64_t block, RowSpan<float> worth) {
    const std::int64_t tokens = q_.heads.rows, keys = std::max(block, kTaskKeys / block * block);
    const std::int64_t most = tokens == 0 ? 0 : *std::max_element(seen, seen + tokens);
    kernels_.pool().run((most + keys - 1) / keys * tokens, [&](std::int64_t task, int thread) {
      const std::int64_t token = task % tokens, begin = task / tokens * keys;
      const std::int64_t end = std::min(seen[token], begin + keys);
      if (begin < end)
        score_blocks(token, begin, end, block, worth.part(token * q_.num_heads, q_.num_heads),
                     held_by(thread));
    });
  }

 private:
  Held held_by(int thread) const {
    const std::size_t heads = static_cast<std::size_t>(q_.num_heads) * head_bytes(dim_);
    unsigned char* const memory =
        threads_ + thread_bytes(q_.num_heads, dim_) * static_cast<std::size_t>(thread);
    auto* const products = reinterpret_cast<float*>(memory + heads);
    return {memory, products, products + q_.num_heads * kKeysAtOnce};
  }

  // Keys one behind the other.
  const float* keys_from(std::int64_t first, std::int64_t count, const Held& held) const {
    const float* const keys = keys_.data + first * keys_.stride;
    if (keys_.stride == dim_) return keys;
    for (std::int64_t i = 0; i < count; ++i) std::copy_n(keys + i * keys_.stride, dim_, held.keys + i * dim_);
    return held.keys;
  }

  void prepare(std::int64_t token, const Held& held) const {
    for (std::int64_t h = 0; h < q_.num_heads; ++h) {
      kernels_.ops().prepare(ActivationKind::kF32, q_.heads.row(token) + h * dim_, dim_,
                             held.heads + static_cast<std::size_t>(h) * head_bytes(dim_));
    }
  }

  // The products of those heads with the keys from number `at` on.
  void multiply(std::int64_t at, std::int64_t count, const Held& held) const {
    const auto* const from = reinterpret_cast<const unsigned char*>(keys_from(at, count, held));
    kernels_.ops().matmul_rows({from, Format::kF32, count, dim_}, 0, count, held.heads, q_.num_heads, nullptr,
                               held.products, kKeysAtOnce);
  }

  void score(std::int64_t token, std::int64_t begin, std::int64_t end, float* scores,
             const Held& held) const {
    const Ops& ops = kernels_.ops();
    const float* const weights = q_.weights == nullptr ? ones_ : q_.weights + token * q_.num_heads;
    const Matrix products = {reinterpret_cast<const unsigned char*>(held.products), Format::kF32,
                             q_.num_heads, kKeysAtOnce};
    prepare(token, held);
    std::fill(scores + begin, scores + end, 0.0f);
    for (std::int64_t at = begin; at < end; at += kKeysAtOnce) {
      const std::int64_t count = std::min(kKeysAtOnce, end - at);
      multiply(at, count, held);
      for (std::int64_t h = 0; h < q_.num_heads; ++h) {
        float* const of_head = held.products + h * kKeysAtOnce;
        ops.activate(Activation::kRelu, {}, of_head, nullptr, of_head, count);
      }
      ops.weighted_sum(products, 0, count, weights, q_.num_heads, 1, scores + at, count);
    }
  }

  void score_blocks(std::int64_t token, std::int64_t begin, std::int64_t end, std::int64_t block,
                    RowSpan<float> worth, const Held& held) const {
    prepare(token, held);
    for (std::int64_t at = begin, last; at < end; at = last) {  // no further than a block's end
      last = std::min({end, at + kKeysAtOnce, (at / block + 1) * block});
      multiply(at, last - at, held);
      for (std::int64_t h = 0; h < q_.num_heads; ++h) {
        const float* const of_head = held.products + h * kKeysAtOnce;
        float& most = worth.row(h)[at / block];
        const float found = *std::max_element(of_head, of_head + (last - at));
        most = at % block == 0 ? found : std::max(most, found);
      }
    }
  }

  Kernels& kernels_;
  const IndexQueries& q_;
  const IndexKeys& keys_;
  std::int64_t dim_;
  Workspace::Frame memory_;
  unsigned char* threads_;
  float* ones_;
};

// The numbers of the best `most` of scores [seen]; `sorted` has room for as many.
void choose(const float* scores, std::int64_t seen, float* sorted, std::int64_t* chosen, std::int64_t most) {
  constexpr float kLeast = -std::numeric_limits<float>::infinity();
  const auto number = [&](std::int64_t i) { return std::isnan(scores[i]) ? kLeast : scores[i]; };
  std::int64_t count = 0;
  if (seen > most) {
    for (std::int64_t i = 0; i < seen; ++i) sorted[i] = number(i);
    std::nth_element(sorted, sorted + most - 1, sorted + seen, std::greater<float>());
    const float least = sorted[most - 1];
    std::int64_t equal = most - std::count_if(sorted, sorted + most, [=](float x) { return x > least; });
    for (std::int64_t i = 0; i < seen; ++i)
      if (number(i) > least || (number(i) == least && equal-- > 0)) chosen[count++] = i;
  } else {
    for (; count < seen; ++count) chosen[count] = count;
  }
  std::fill(chosen + count, chosen + most, std::int64_t{-1});
}

// Tokens that choose together, and the memory of their scores.
std::int64_t tokens_at_once(std::int64_t num_keys) {
  return std::max<std::int64_t>(1, kScoresAtOnce / std::max<std::int64_t>(1, num_keys));
}

}  // namespace

void score_keys(Kernels& kernels, const IndexQueries& queries, const IndexKeys& keys,
                const std::int64_t* seen, RowSpan<float> scores) {
  KeyScores(kernels, queries, keys).score(0, seen, scores);
}

void score_blocks(Kernels& kernels, const IndexQueries& queries, const IndexKeys& keys,
                  const std::int64_t* seen, std::int64_t block, RowSpan<float> worth) {
  KeyScores(kernels, queries, keys).score_blocks(seen, block, worth);
}

void choose_best(Kernels& kernels, RowSpan<const float> scores, const std::int64_t* seen,
                 RowSpan<std::int64_t> chosen) {
  Workspace::Frame memory(kernels.workspace());
  float* const sorted = memory.take<float>(kernels.pool().num_threads() * scores.cols);
  kernels.pool().run(chosen.rows, [&](std::int64_t row, int thread) {
    choose(scores.row(row), seen[row], sorted + thread * scores.cols, chosen.row(row), chosen.cols);
  });
}

void choose_keys(Kernels& kernels, const IndexQueries& queries, const IndexKeys& keys,
                 const std::int64_t* seen, RowSpan<std::int64_t> chosen) {
  Workspace::Frame memory(kernels.workspace());
  const std::int64_t at_once = std::min(chosen.rows, tokens_at_once(keys.count));
  const RowSpan<float> scores = {memory.take<float>(at_once * keys.count), at_once, keys.count};
  KeyScores all(kernels, queries, keys);
  for (std::int64_t start = 0; start < chosen.rows; start += at_once) {
    const std::int64_t count = std::min(at_once, chosen.rows - start);
    all.score(start, seen + start, scores.part(0, count));
    choose_best(kernels, scores.part(0, count), seen + start, chosen.part(start, count));
  }
}

std::size_t index_workspace_bytes(std::int64_t num_heads, std::int64_t head_dim, std::int64_t num_keys,
                                  int num_threads) {
  Workspace::Frame memory;
  memory.take<float>(std::max(kScoresAtOnce, num_keys));
  memory.take<float>(num_threads * num_keys);
  take_threads(memory, num_heads, head_dim, num_threads);
  memory.take<float>(num_heads);
  return memory.num_bytes();
}

}  // namespace moeinf
