// Where the matrices of an expert lie: in one block, or cut into slices that lie apart.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "moeinf/compute/formats/formats.h"
#include "moeinf/compute/ops.h"

namespace moeinf {

// One matrix of an expert, or a bias (of one column), and where it lies in the expert's block.
struct ExpertPart {
  Format format;
  std::int64_t rows, cols;
  std::size_t offset_bytes;
  // Of a part that was read with the rest of its file's blocks: where that of expert 0 begins in the file,
  // and how far it is from one expert to the next. That of expert e begins (start + e * step) % 4096 behind
  // offset_bytes.
  std::int64_t start_bytes = 0, step_bytes = 0;
  std::shared_ptr<const std::vector<float>> scales{};  // of each expert's weights; none: 1
};

struct ExpertParts {
  std::optional<ExpertPart> gate;  // [intermediate, hidden], as up; none: experts without a gate
  ExpertPart up, down;             // down [hidden, intermediate]
  std::optional<ExpertPart> gate_bias, up_bias, down_bias;  // of f32, f16 or bf16, added to the products
};

// Some rows of an expert that lie in one block: of up, with gate and their biases; of down with its bias; or
// of both. A part has the rows of the slice.
struct ExpertSlice {
  std::optional<ExpertPart> gate, up, down, gate_bias, up_bias, down_bias;
};

struct ExpertForm {
  Activation activation = Activation::kSilu;
  Limits limits{};
};

// The experts of a layer as they are computed. A whole expert is one slice.
struct ExpertLayer {
  struct Slice {
    // Whose product is activated: up itself, where experts have no gate; and its factor, if there is one.
    std::optional<ExpertPart> gate, up, down;
    std::optional<ExpertPart> gate_bias, up_bias, down_bias;
    std::int64_t act_row = 0, act_rows = 0, down_row = 0, down_rows = 0;  // of the expert's
  };

  ExpertPart gate;  // these three have the rows of the expert, and no place
  std::optional<ExpertPart> up;
  ExpertPart down;
  ExpertForm form;
  std::vector<Slice> slices;
};

// Throws std::invalid_argument for slices that do not make up an expert, in this order: all rows of gate and
// up, then those of down. A form that is clamped needs a gate.
ExpertLayer layer_of(const std::vector<ExpertSlice>& slices, ExpertForm form);
ExpertSlice whole(const ExpertParts& parts);

// Where a part of an expert begins in its block.
std::size_t begin_of(const ExpertPart& part, std::int64_t expert);
// Where the last part of a slice ends in its block. Throws std::invalid_argument for an expert that lacks a
// scale.
std::size_t block_bytes(const ExpertLayer::Slice& slice, std::int64_t expert);

}  // namespace moeinf
