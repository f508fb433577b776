#include "attend_few.h"

#include <algorithm>

#include "runs.h"

namespace moeinf {
namespace {

// Query heads that share a key/value head, cut into groups that go through together.
std::int64_t num_cuts(const AttentionShape& shape) {
  return (shape.num_heads / shape.num_kv_heads + kMaxGroup - 1) / kMaxGroup;
}
std::int64_t num_parts(const AttentionShape& shape, std::int64_t tokens) {
  return tokens * shape.num_kv_heads * num_cuts(shape);
}

// The positions that a token attends to.
struct Seen {
  std::int64_t first, last;
};
Seen seen_by(const AttentionShape& shape, std::int64_t position) {
  return {shape.first_seen(position), position + 1};
}
std::int64_t runs_of(const Seen& seen) {
  const std::int64_t length = run_positions(seen.last - seen.first);
  return (seen.last - seen.first + length - 1) / length;
}
// Of the token with most.
std::int64_t most_runs(const AttentionShape& shape, Span<const Place> places) {
  std::int64_t most = 1;
  for (const Place& place : places) most = std::max(most, runs_of(seen_by(shape, place.position)));
  return most;
}

// At most kMaxGroup query heads of one token that share a key/value head, and the positions that they attend
// to.
struct Part {
  std::int64_t first_query;  // of the queries of all tokens
  int num_queries;
  std::int64_t head;  // the key/value head
  const KVView* kv;
  Seen seen;

  std::int64_t run_length() const { return run_positions(seen.last - seen.first); }
};

// What the runs of all queries come to.
struct Runs {
  SoftmaxState* states;  // [runs, queries]
  float* sums;           // [runs, queries, head_dim]; null for a single run, whose sums are the output
};

Runs take_runs(Workspace::Frame& memory, std::int64_t num_runs, std::int64_t num_queries,
               std::int64_t head_dim) {
  const std::int64_t rows = num_runs * num_queries;
  return {memory.take<SoftmaxState>(rows), num_runs > 1 ? memory.take<float>(rows * head_dim) : nullptr};
}

class FewTokens {
 public:
  FewTokens(Kernels& kernels, const AttentionShape& shape, const float* sinks, Span<const Place> places,
            const float* query, float* mixed, const OfQueries& own)
      : kernels_(kernels),
        memory_(kernels.workspace()),
        s_(shape),
        sinks_(sinks),
        places_(places),
        query_(query),
        mixed_(mixed),
        own_(own),
        group_(shape.num_heads / shape.num_kv_heads),
        cuts_(num_cuts(shape)),
        num_parts_(num_parts(shape, static_cast<std::int64_t>(places_.size()))),
        num_queries_(static_cast<std::int64_t>(places_.size()) * shape.num_heads),
        num_runs_(most_runs(shape, places_)) {
    runs_ = take_runs(memory_, num_runs_, num_queries_, s_.head_dim);
    if (num_runs_ == 1) runs_.sums = mixed_;
  }

  void run() {
    Pool& pool = kernels_.pool();
    pool.run(num_parts_ * num_runs_, [this](std::int64_t task, int) {
      const Part part = part_of(task / num_runs_);
      attend_run(part, task % num_runs_);
      if (num_runs_ == 1) join_runs(part);
    });
    if (num_runs_ > 1) pool.run(num_parts_, [this](std::int64_t index, int) { join_runs(part_of(index)); });
  }

 private:
  Part part_of(std::int64_t index) const {
    const std::int64_t cut = index % cuts_, head = index / cuts_ % s_.num_kv_heads,
                       token = index / cuts_ / s_.num_kv_heads;
    const Place& place = places_[static_cast<std::size_t>(token)];
    return {token * s_.num_heads + head * group_ + cut * kMaxGroup,
            static_cast<int>(std::min<std::int64_t>(kMaxGroup, group_ - cut * kMaxGroup)), head, place.kv,
            seen_by(s_, place.position)};
  }

  SoftmaxState* states_of(const Part& part, std::int64_t run) const {
    return runs_.states + run * num_queries_ + part.first_query;
  }
  float* sums_of(const Part& part, std::int64_t run) const {
    return runs_.sums + (run * num_queries_ + part.first_query) * s_.head_dim;
  }

  const float* sinks_of(const Part& part) const {
    if (sinks_ != nullptr) return sinks_ + part.first_query % s_.num_heads;
    return own_.sinks == nullptr ? nullptr : own_.sinks + part.first_query;
  }

  void attend_run(const Part& part, std::int64_t run) const {
    if (run >= runs_of(part.seen)) return;
    const KVView& kv = *part.kv;
    const std::size_t row = row_bytes(kv.format, part.head * kv.capacity * s_.head_dim);
    AttendTask task;
    task.queries = query_ + part.first_query * s_.head_dim;
    task.num_queries = part.num_queries;
    task.keys = static_cast<const unsigned char*>(kv.keys) + row;
    task.values = static_cast<const unsigned char*>(kv.values) + row;
    task.format = kv.format;
    task.first = part.seen.first + run * part.run_length();
    task.last = std::min(part.seen.last, task.first + part.run_length());
    task.head_dim = s_.head_dim;
    task.scale = s_.scale;
    task.sinks = run > 0 ? nullptr : sinks_of(part);
    task.relative = own_.relative;
    if (task.relative.states != nullptr) task.relative.states += part.first_query * task.relative.width;
    task.own = part.seen.last - 1;
    task.cap = s_.cap;
    kernels_.ops().attend(task, states_of(part, run), sums_of(part, run));
  }

  void join_runs(const Part& part) const {
    for (int i = 0; i < part.num_queries; ++i) {
      SoftmaxState& state = states_of(part, 0)[i];
      float* const sums = sums_of(part, 0) + i * s_.head_dim;
      for (std::int64_t run = 1; run < runs_of(part.seen); ++run) {
        fold_run(kernels_.ops(), states_of(part, run)[i], sums_of(part, run) + i * s_.head_dim, s_.head_dim,
                 state, sums);
      }
      const float scale = 1.0f / state.total;
      float* const out = mixed_ + (part.first_query + i) * s_.head_dim;
      for (std::int64_t c = 0; c < s_.head_dim; ++c) out[c] = sums[c] * scale;
    }
  }

  Kernels& kernels_;
  Workspace::Frame memory_;
  const AttentionShape& s_;
  const float* sinks_;
  Span<const Place> places_;
  const float* query_;
  float* mixed_;
  OfQueries own_;
  std::int64_t group_, cuts_, num_parts_, num_queries_;
  std::int64_t num_runs_;  // of the token with most
  Runs runs_;
};

}  // namespace

Places::Places(Span<const Stretch> stretches) {
  std::size_t next = 0;
  for (const Stretch& stretch : stretches) {
    for (std::int64_t t = 0; t < stretch.tokens; ++t) of.at(next++) = {&stretch.kv, stretch.length + t};
  }
}

void attend_few(Kernels& kernels, const AttentionShape& shape, const float* sinks, Span<const Place> places,
                const float* query, float* mixed, const OfQueries& own) {
  FewTokens(kernels, shape, sinks, places, query, mixed, own).run();
}

std::int64_t few_tasks(const AttentionShape& shape, std::int64_t length, std::int64_t tokens) {
  const Stretch stretch = {{}, length, tokens};
  return num_parts(shape, tokens) * most_runs(shape, Places({&stretch, 1}).part(0, tokens));
}

std::size_t few_workspace_bytes(const AttentionShape& shape, const PassShape& pass) {
  const std::int64_t seen = shape.window > 0 ? std::min(shape.window, pass.positions) : pass.positions;
  const std::int64_t runs = std::min(kMostRuns, (seen + kRunPositions - 1) / kRunPositions);
  Workspace::Frame memory;
  take_runs(memory, runs, std::min(pass.tokens, kFewAttending) * shape.num_heads, shape.head_dim);
  return memory.num_bytes();
}

}  // namespace moeinf
