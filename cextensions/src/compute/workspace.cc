#include "moeinf/compute/workspace.h"

#include <algorithm>

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
  const std::size_t whole_lines = (num_bytes + kLine - 1) / kLine * kLine;
  num_bytes_ += whole_lines;
  return workspace_ == nullptr ? nullptr : workspace_->take(whole_lines);
}

void* Workspace::take(std::size_t num_bytes) {
  if (blocks_.empty()) blocks_.emplace_back();
  if (offset_ > 0 && offset_ + num_bytes > blocks_[block_].capacity()) {
    ++block_;
    offset_ = 0;
    if (block_ == blocks_.size()) blocks_.emplace_back();
  }
  // At offset 0 nothing of the block is in use, and it may grow.
  auto* const data = static_cast<unsigned char*>(blocks_[block_].reserve(offset_ + num_bytes)) + offset_;
  offset_ += num_bytes;
  live_bytes_ += num_bytes;
  most_bytes_ = std::max(most_bytes_, live_bytes_);
  return data;
}

void Workspace::join_blocks() {
  if (blocks_.size() <= 1) return;
  blocks_.resize(1);
  blocks_[0].reserve(most_bytes_);
}

std::size_t Workspace::used_bytes() const {
  std::size_t total = 0;
  for (const Buffer& block : blocks_) total += block.used_bytes();
  return total;
}

}  // namespace moeinf
