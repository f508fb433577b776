#include "moeinf/compute/layers/expert_parts.h"

#include <algorithm>
#include <stdexcept>
#include <string>

namespace moeinf {
namespace {

using Slice = ExpertLayer::Slice;

void require_shape(const ExpertPart& part, const char* name, std::int64_t rows, std::int64_t cols) {
  if (part.rows != rows || part.cols != cols || rows < 1 || cols < 1) {
    throw std::invalid_argument(std::string(name) + " is [" + std::to_string(part.rows) + ", " +
                                std::to_string(part.cols) + "]; up asks for [" + std::to_string(rows) + ", " +
                                std::to_string(cols) + "]");
  }
  if (cols % block_weights(part.format) != 0) {
    throw std::invalid_argument(std::string(name) + " has " + std::to_string(cols) +
                                " columns, no whole number of " + name_of(part.format) + " blocks");
  }
}

void require_bias(const std::optional<ExpertPart>& bias, const char* name, std::int64_t rows) {
  if (!bias) return;
  require_shape(*bias, name, rows, 1);  // so it is of no format with blocks
}

std::size_t num_bytes_of(const ExpertPart& part) {
  return static_cast<std::size_t>(part.rows) * row_bytes(part.format, part.cols);
}

// Takes a part that may lie in several slices as one with all of their rows.
void add_rows(std::optional<ExpertPart>& whole, const std::optional<ExpertPart>& part) {
  if (!part) return;
  if (!whole) {
    whole = ExpertPart{part->format, part->rows, part->cols, 0};
    return;
  }
  if (whole->format != part->format || whole->cols != part->cols)
    throw std::invalid_argument("the slices of an expert differ in format or columns");
  whole->rows += part->rows;
}

void require_slice(const ExpertSlice& slice, const ExpertSlice& all) {
  if (!slice.up && !slice.down) throw std::invalid_argument("a slice of an expert has rows of up or down");
  if (slice.up.has_value() != slice.gate.has_value() && (all.gate || slice.gate))
    throw std::invalid_argument("a slice of an expert has up and gate together");
  if (slice.gate) require_shape(*slice.gate, "gate", slice.up->rows, slice.up->cols);
  require_bias(slice.gate_bias, "gate_bias", slice.gate ? slice.gate->rows : 0);
  require_bias(slice.up_bias, "up_bias", slice.up ? slice.up->rows : 0);
  require_bias(slice.down_bias, "down_bias", slice.down ? slice.down->rows : 0);
}

Slice placed(const ExpertSlice& slice, std::int64_t act_row, std::int64_t down_row) {
  const bool gated = slice.gate.has_value();
  return {gated ? slice.gate : slice.up,
          gated ? slice.up : std::nullopt,
          slice.down,
          gated ? slice.gate_bias : slice.up_bias,
          gated ? slice.up_bias : std::nullopt,
          slice.down_bias,
          act_row,
          slice.up ? slice.up->rows : 0,
          down_row,
          slice.down ? slice.down->rows : 0};
}

}  // namespace

ExpertLayer layer_of(const std::vector<ExpertSlice>& slices, ExpertForm form) {
  const auto [activation, limits] = form;
  ExpertSlice all;
  for (const ExpertSlice& slice : slices) {
    for (const auto part : {&ExpertSlice::gate, &ExpertSlice::up, &ExpertSlice::down, &ExpertSlice::gate_bias,
                            &ExpertSlice::up_bias, &ExpertSlice::down_bias})
      add_rows(all.*part, slice.*part);
  }
  if (!all.up || !all.down) throw std::invalid_argument("an expert lacks the part up or down");
  const std::int64_t rows = all.up->rows, cols = all.up->cols;
  require_shape(*all.up, "up", rows, cols);
  if (all.gate) require_shape(*all.gate, "gate", rows, cols);
  require_shape(*all.down, "down", cols, rows);
  require_bias(all.gate_bias, "gate_bias", all.gate ? rows : 0);
  require_bias(all.up_bias, "up_bias", rows);
  require_bias(all.down_bias, "down_bias", cols);
  const bool clamped = activation == Activation::kSwigluClamped || activation == Activation::kSiluClamped ||
                       activation == Activation::kClampedSilu;
  if (clamped && !(all.gate && limits.limit > 0))
    throw std::invalid_argument("an activation that is clamped needs a gate, and a limit above 0");
  if (activation == Activation::kSoftcapped && !(all.gate && limits.of_gate > 0 && limits.limit >= 0))
    throw std::invalid_argument(
        "an activation that is softcapped needs a gate with a limit above 0, and none below 0 of the rest");
  ExpertLayer layer{all.gate ? *all.gate : *all.up, all.gate ? all.up : std::nullopt, *all.down, form, {}};
  std::int64_t act_row = 0, down_row = 0;
  for (const ExpertSlice& slice : slices) {
    require_slice(slice, all);
    if (slice.up && down_row > 0) throw std::invalid_argument("rows of down come behind all those of up");
    layer.slices.push_back(placed(slice, act_row, down_row));
    act_row += layer.slices.back().act_rows;
    down_row += layer.slices.back().down_rows;
    if (slice.down && act_row < rows) throw std::invalid_argument("rows of down come behind all those of up");
  }
  return layer;
}

ExpertSlice whole(const ExpertParts& parts) {
  return {parts.gate, parts.up, parts.down, parts.gate_bias, parts.up_bias, parts.down_bias};
}

std::size_t begin_of(const ExpertPart& part, std::int64_t expert) {
  constexpr std::int64_t block_bytes = 4096;  // in which files are read
  const std::int64_t start = part.start_bytes % block_bytes, step = part.step_bytes % block_bytes;
  return part.offset_bytes + static_cast<std::size_t>((start + expert * step) % block_bytes);
}

std::size_t block_bytes(const Slice& slice, std::int64_t expert) {
  std::size_t num_bytes = 0;
  for (const std::optional<ExpertPart>* part :
       {&slice.gate, &slice.up, &slice.down, &slice.gate_bias, &slice.up_bias, &slice.down_bias}) {
    if (!*part) continue;
    num_bytes = std::max(num_bytes, begin_of(**part, expert) + num_bytes_of(**part));
    if ((*part)->scales && static_cast<std::size_t>(expert) >= (*part)->scales->size())
      throw std::invalid_argument("expert " + std::to_string(expert) + " has no scale");
  }
  return num_bytes;
}

}  // namespace moeinf
