#include <cstdint>
#include <cstring>
#include <stdexcept>

#include "check.h"
#include "moeinf/compute/workspace.h"

using moeinf::Workspace;

namespace {

constexpr std::int64_t kFloats = 1000;  // 4000 bytes, which are 63 lines
constexpr std::size_t kTaken = 63 * 64;

bool is_aligned(const void* p) { return reinterpret_cast<std::uintptr_t>(p) % 64 == 0; }

}  // namespace

TEST(what_a_frame_has_taken_stays_while_frames_above_it_come_and_go) {
  Workspace workspace;
  Workspace::Frame below(workspace);
  float* const first = below.take<float>(kFloats);
  for (std::int64_t i = 0; i < kFloats; ++i) first[i] = 1;
  for (const std::int64_t count :
       {10, 100000, 5, 3000000}) {  // more than any block has left: it must not move
    Workspace::Frame above(workspace);
    float* const second = above.take<float>(count);
    CHECK(is_aligned(second));
    for (std::int64_t i = 0; i < count; ++i) second[i] = 2;
  }
  for (std::int64_t i = 0; i < kFloats; ++i) CHECK(first[i] == 1);
}

TEST(frames_that_follow_each_other_share_their_memory) {
  Workspace workspace;
  const auto taken = [&] {
    Workspace::Frame frame(workspace);
    return frame.take<float>(kFloats);
  };
  const float* const first = taken();
  CHECK(taken() == first);
  CHECK(workspace.used_bytes() == kTaken);
}

TEST(a_step_that_was_done_before_takes_no_more) {
  Workspace workspace;
  const auto step = [&] {
    Workspace::Frame below(workspace);
    below.take<float>(kFloats);
    Workspace::Frame above(workspace);
    above.take<float>(2 * kFloats);
    above.take<float>(3 * kFloats);
  };
  step();
  step();
  const std::size_t after = workspace.used_bytes();
  CHECK(after == kTaken + 125 * 64 + 188 * 64);
  step();
  CHECK(workspace.used_bytes() == after);
}

TEST(what_is_released_is_taken_anew_and_never_under_a_frame) {
  Workspace workspace;
  {
    Workspace::Frame frame(workspace);
    frame.take<float>(kFloats);
    CHECK(throws<std::logic_error>([&] { workspace.release(); }));
  }
  workspace.release();
  CHECK(workspace.used_bytes() == 0);
  Workspace::Frame frame(workspace);
  float* const taken = frame.take<float>(kFloats);
  for (std::int64_t i = 0; i < kFloats; ++i) taken[i] = 1;
  CHECK(workspace.used_bytes() == kTaken);
}

TEST(a_frame_without_a_workspace_only_counts) {
  Workspace::Frame frame;
  CHECK(frame.take<float>(kFloats) == nullptr);
  CHECK(frame.take<float>(0) == nullptr);
  CHECK(frame.num_bytes() == kTaken);
}
