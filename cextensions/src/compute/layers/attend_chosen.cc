#include "attend_chosen.h"

#include <algorithm>
#include <cstring>

#include "attend_few.h"

namespace moeinf {
namespace {

constexpr std::int64_t kRowsOfTask = 256;  // that one task copies

// Keys and values [num_kv_heads, each, head_dim] of the positions that one token attends to.
KVView take_picked(Workspace::Frame& memory, const AttentionShape& s, Format format, std::int64_t each) {
  const auto num_bytes = static_cast<std::int64_t>(row_bytes(format, s.num_kv_heads * each * s.head_dim));
  KVView picked{};
  picked.keys = memory.take<unsigned char>(num_bytes);
  picked.values = memory.take<unsigned char>(num_bytes);
  picked.format = format;
  picked.capacity = each;
  return picked;
}

void copy_rows(const AttentionShape& s, const KVView& from, const KVView& to, const std::int64_t* positions,
               std::int64_t head, std::int64_t first, std::int64_t last) {
  const std::size_t row = row_bytes(from.format, s.head_dim);
  const auto at = [&](void* data, std::int64_t capacity, std::int64_t position) {
    return static_cast<unsigned char*>(data) + static_cast<std::size_t>(head * capacity + position) * row;
  };
  for (std::int64_t i = first; i < last; ++i) {
    std::memcpy(at(to.keys, to.capacity, i), at(from.keys, from.capacity, positions[i]), row);
    std::memcpy(at(to.values, to.capacity, i), at(from.values, from.capacity, positions[i]), row);
  }
}

}  // namespace

void attend_chosen(Kernels& kernels, const AttentionShape& s, const float* sinks, const KVView& kv,
                   const ChosenPositions& chosen, const float* query, float* mixed) {
  if (chosen.tokens == 0) return;
  Workspace::Frame memory(kernels.workspace());
  const KVView picked = take_picked(memory, s, kv.format, chosen.each);
  AttentionShape all = s;
  all.window = 0;
  const std::int64_t queries = s.num_heads * s.head_dim;
  for (std::int64_t t = 0; t < chosen.tokens; ++t) {
    const std::int64_t* const positions = chosen.positions + t * chosen.groups * chosen.each;
    const std::int64_t count =
        std::find_if(positions, positions + chosen.each, [](std::int64_t p) { return p < 0; }) - positions;
    const std::int64_t tasks = (count + kRowsOfTask - 1) / kRowsOfTask;
    kernels.pool().run(s.num_kv_heads * tasks, [&](std::int64_t task, int) {
      const std::int64_t first = task % tasks * kRowsOfTask, head = task / tasks;
      const std::int64_t* const of_head = positions + (chosen.groups > 1 ? head * chosen.each : 0);
      copy_rows(s, kv, picked, of_head, head, first, std::min(count, first + kRowsOfTask));
    });
    const Place last = {&picked, count - 1};
    attend_few(kernels, all, sinks, {&last, 1}, query + t * queries, mixed + t * queries);
  }
}

std::size_t chosen_workspace_bytes(const AttentionShape& s, const PassShape& pass) {
  Workspace::Frame memory;
  take_picked(memory, s, pass.kept, s.most_chosen);
  PassShape one = pass;
  one.tokens = 1;
  one.positions = s.most_chosen;
  AttentionShape all = s;
  all.window = 0;
  return memory.num_bytes() + few_workspace_bytes(all, one);
}

}  // namespace moeinf
