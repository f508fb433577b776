// The routed experts of one layer: down(act(gate x) * (up x)) for every token and each of its experts, or
// down(act(up x)) where they have no gate, and their sum.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

#include "moeinf/compute/kernels.h"
#include "moeinf/compute/layers/expert_groups.h"
#include "moeinf/compute/layers/expert_parts.h"
#include "moeinf/compute/squares.h"

namespace moeinf {

// Blocks of experts lie somewhere in one memory, as a tier's slots do. One layer is begin, compute any number
// of times as blocks arrive, finish; what comes out depends on neither the number nor the order of the
// compute calls. A step as large as one before allocates nothing. Used by one thread at a time; not while
// another uses the same kernels.
//
// Experts may be cut into slices, each of which lies somewhere: then slice s of expert e is called e * most +
// s wherever an expert is computed, where `most` is how many slices the layer has whose experts have most.
// Those of an expert are computed in their order, and those of one expert before those of the next.
class ExpertKernel {
 public:
  // layers: the experts of all layers, or of each; forms: what those of all compute, or of each.
  // Throws std::invalid_argument for shapes that do not fit together, or columns that are no whole number of
  // blocks.
  ExpertKernel(Kernels& kernels, const unsigned char* memory, std::size_t num_bytes,
               const std::vector<ExpertParts>& layers, const std::vector<ExpertForm>& forms = {{}});
  ExpertKernel(Kernels& kernels, const unsigned char* memory, std::size_t num_bytes,
               const std::vector<std::vector<ExpertSlice>>& layers,
               const std::vector<ExpertForm>& forms = {{}});

  std::int64_t hidden_size() const { return layers_[0].gate.cols; }  // that of every layer
  std::int64_t num_tokens() const { return num_tokens_; }            // of the last begin
  bool has_begun() const { return has_begun_; }                      // and was not finished

  // hidden [tokens, hidden_size]; ids and weights [tokens, top_k]. Nothing of them is needed after
  // the call. What an earlier begin left is forgotten. Throws std::invalid_argument for an id that is
  // negative or beyond ExpertGroups::kMaxExperts, and for a layer that is not there.
  void begin(RowSpan<const float> hidden, RowSpan<const std::int64_t> ids, const float* weights,
             std::int64_t layer = 0);
  // The experts that the tokens of begin were routed to, ascending, and how many tokens each got.
  const std::vector<std::int64_t>& experts() const { return groups_.experts; }
  const std::vector<std::int64_t>& counts() const { return groups_.counts; }

  // The outputs of experts[i], whose block begins at memory[offsets[i]], for all tokens routed to it. Throws
  // std::invalid_argument, and computes nothing, for an expert that no token was routed to or that was
  // computed before, for a slice that is not the next, and for a block that is not inside the memory.
  void compute(Span<const std::int64_t> experts, Span<const std::int64_t> offsets);

  // Of experts that another machine computes. A row is the output of one token's expert: those of experts[0]
  // come first, each expert's in the order of the tokens, as many as counts() says. `put` takes the outputs
  // of experts in place of `compute`; `get` copies those that were computed here. Both throw
  // std::invalid_argument, and change nothing, for an expert that no token was routed to, and where there are
  // other rows than those; put as compute does, too, and get for an expert that was not computed.
  void put(Span<const std::int64_t> experts, RowSpan<const float> rows);
  void get(Span<const std::int64_t> experts, RowSpan<float> rows);

  // out [num_tokens, hidden_size] += weights[t, j] * output of the j-th expert of token t, added one after
  // the other in the order of j. Throws std::invalid_argument unless all experts were computed; needs a new
  // begin afterwards.
  void finish(float* out);

  // From here on the squares of what each expert of a layer is multiplied with are added to its sums as well,
  // and its tokens counted. Throws std::invalid_argument for a layer that is not there, where layers differ,
  // and for sums of other columns.
  void watch(std::int64_t layer, const ExpertSquares& squares);

  // From here on finish divides the weight of each expert of a layer by the root of the mean square of its
  // output, each number of which is multiplied by one of scale [hidden_size] first, plus eps. Throws
  // std::invalid_argument for a layer that is not there, where layers differ, and for an eps below 0.
  void norm_outputs(std::int64_t layer, std::vector<float> scale, float eps);

  // What down was multiplied with by the last compute, which was of one expert, for all tokens routed to it,
  // in their order. Throws std::invalid_argument where compute was not of one expert, and for another shape.
  void acts(RowSpan<float> out);

  // As Kernels::release_scratch; a layer that has begun needs a new begin.
  void release_scratch();
  std::size_t scratch_bytes() const;  // as Kernels::scratch_bytes, of what is not the kernels'
  // What such a kernel keeps at most, once passes of every length up to this one have gone through.
  static std::size_t workspace_bytes(const ExpertParts& parts, std::int64_t top_k, const PassShape& pass);

 private:
  struct Job {          // an expert of one compute call, or a slice of one
    std::size_t group;  // index in experts()
    const ExpertLayer::Slice* slice;
    std::int64_t first_pair;  // of its intermediates among those of the jobs that run together
    std::int64_t offset;      // of its block
    std::size_t first_job;    // of the same expert
    std::int64_t act_task_rows, act_tasks_end, down_task_rows, down_tasks_end;
  };

  void reserve();
  void prepare_inputs(RowSpan<const float> hidden);
  void add_inputs(RowSpan<const float> hidden);
  void add_acts(const Job& job, const float* values);
  void require_layer(std::int64_t layer) const;
  float weight_of(std::int64_t pair, const float* output) const;
  void prepare_input(RowSpan<const float> hidden, const ExpertPart& part);
  void prepare_tokens(RowSpan<const float> hidden, const ExpertPart& part);
  void prepare_tiles(RowSpan<const float> hidden, const ExpertPart& part);
  template <class RowOf>
  void prepare_group(std::size_t group, const ExpertPart& part, unsigned char* out, const RowOf& row_of);
  void check_job(std::int64_t id, std::int64_t offset);
  void take_back(const std::int64_t* ids, std::size_t count);
  std::size_t group_of(std::int64_t expert) const;
  void mark_computed(std::int64_t expert);
  void check_rows(Span<const std::int64_t> experts, std::int64_t num_rows) const;
  std::size_t num_slices() const { return layer_->slices.size(); }
  bool is_computed(std::size_t group) const { return num_done_[group] == num_slices(); }
  void collect_jobs(const std::int64_t* ids, const std::int64_t* offsets, std::size_t count);
  void append_job(std::size_t group, std::int64_t id, std::int64_t offset, std::int64_t first_pair,
                  std::size_t num_jobs);
  std::int64_t act_task_rows(std::int64_t rows, std::int64_t count, std::size_t num_jobs) const;
  Matrix part_of(const Job& job, const ExpertPart& part) const;
  // What the activations of a step are turned into for a part, of however many tokens an expert has.
  ActivationKind kind_of(const ExpertPart& part) const {
    return kernels_.activation_of(part.format, num_tokens_);
  }
  void multiply(const Job& job, const ExpertPart& part, const std::optional<ExpertPart>& bias,
                std::int64_t first, std::int64_t last, const void* x, int thread, float* y,
                std::int64_t y_stride);
  void run_act_task(std::int64_t task, int thread);
  void finish_act(const Job& job);
  void run_down_task(std::int64_t task, int thread);
  unsigned char* input(const ExpertPart& part, std::size_t group);
  unsigned char* act(const Job& job);

  Kernels& kernels_;
  const unsigned char* memory_;
  std::size_t num_bytes_;
  std::vector<ExpertLayer> layers_;
  std::int64_t most_slices_ = 1;
  const ExpertLayer* layer_ = nullptr;             // that runs
  std::map<std::int64_t, ExpertSquares> watched_;  // by layer
  const ExpertSquares* squares_ = nullptr;         // of the layer that runs
  struct OutputNorm {
    std::vector<float> scale;
    float eps;
  };
  std::map<std::int64_t, OutputNorm> norms_;  // by layer
  const OutputNorm* norm_ = nullptr;          // of the layer that runs

  std::int64_t num_tokens_ = 0, top_k_ = 0;
  std::vector<float> weights_;  // [num_tokens, top_k]
  ExpertGroups groups_;
  bool shares_input_ = false;          // a single token needs its activation but once
  std::vector<std::size_t> num_done_;  // slices that were computed, by group
  std::size_t num_computed_ = 0;       // experts
  bool is_open_ = false;               // the last expert that was computed lacks slices
  bool has_begun_ = false;

  std::vector<Job> jobs_;
  // Of each expert, by its first job, until the activations of its jobs are complete; and of all its slices.
  std::vector<std::atomic<std::int64_t>> tasks_left_;
  // What the first matrices and the last are multiplied with, by ActivationKind; inputs in the order of
  // groups_.sorted.
  std::array<Buffer, kActivationKinds> inputs_, acts_;
  Buffer gates_, ups_, outputs_;  // products of the three matrices, floats; those of up exist in each thread
  std::size_t ups_of_thread_ = 0;
};

}  // namespace moeinf
