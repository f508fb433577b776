#include "moeinf/compute/workspace.h"

#include <algorithm>
#include <cstdint>
#include <new>
#include <stdexcept>

namespace moeinf {
namespace {

constexpr std::size_t kLine = 64;

}  // namespace

Workspace::Frame::Frame(Workspace& workspace) : workspace_(&workspace) {
  if (workspace.live_bytes_ == 0) workspace.join_blocks();
  block_ = workspace.block_;
  offset_ = workspace.offset_;
}

Workspace::Frame::~Frame() {
  if (workspace_ == nullptr) return;
  workspace_->block_ = block_;
  workspace_->offset_ = offset_;
  workspace_->live_bytes_ -= num_bytes_;
}

void* Workspace::Frame::take_bytes(std::size_t num_bytes) {
  if (num_bytes > SIZE_MAX / 2) throw std::bad_alloc();  // as of a negative count
  const std::size_t whole_lines = (num_bytes + kLine - 1) / kLine * kLine;
  void* const data = workspace_ == nullptr ? nullptr : workspace_->take(whole_lines);
  num_bytes_ += whole_lines;  // where it was refused, the frame has not got it
  return data;
}

void* Workspace::take(std::size_t num_bytes) {
  if (blocks_.empty()) blocks_.emplace_back();
  const bool fits = offset_ == 0 || num_bytes <= blocks_[block_].capacity() - offset_;
  const std::size_t block = fits ? block_ : block_ + 1, offset = fits ? offset_ : 0;
  if (block == blocks_.size()) blocks_.emplace_back();
  // At offset 0 nothing of the block is in use, and it may grow.
  auto* const data = static_cast<unsigned char*>(blocks_[block].reserve(offset + num_bytes)) + offset;
  block_ = block;
  offset_ = offset + num_bytes;
  live_bytes_ += num_bytes;
  most_bytes_ = std::max(most_bytes_, live_bytes_);
  return data;
}

void Workspace::join_blocks() {
  if (blocks_.size() <= 1) return;
  blocks_.resize(1);
  blocks_[0].reserve(most_bytes_);
}

void Workspace::release() {
  if (live_bytes_ != 0) throw std::logic_error("an operation has some of the workspace");
  blocks_.clear();
  block_ = offset_ = most_bytes_ = 0;
}

std::size_t Workspace::used_bytes() const {
  std::size_t total = 0;
  for (const Buffer& block : blocks_) total += block.used_bytes();
  return total;
}

}  // namespace moeinf
