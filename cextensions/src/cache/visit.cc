#include "moeinf/cache/visit.h"

#include <algorithm>
#include <iterator>
#include <stdexcept>
#include <utility>

namespace moeinf {

Visit::Visit(ExpertCache& cache, Loader& loader, Needed needed)
    : cache_(cache), loader_(loader), needed_(std::move(needed)) {
  find_keys();
  try {
    begin();
  } catch (...) {
    close();
    throw;
  }
}

void Visit::find_keys() {
  const std::int64_t slices = loader_.slices(), num_keys = cache_.num_experts();
  if (layer() < 0 || layer() >= cache_.num_layers()) throw std::invalid_argument("there is no such layer");
  if (needed_.counts.size() != needed_.experts.size())
    throw std::invalid_argument("counts are one for each expert");
  keys_.reserve(needed_.experts.size() * static_cast<std::size_t>(slices));
  for (const std::int64_t expert : needed_.experts) {
    if (expert < 0 || expert >= num_keys / slices) throw std::invalid_argument("there is no such expert");
    const std::int64_t first = layer() * num_keys + expert * slices;
    for (std::int64_t key = first; key < first + slices; ++key)
      if (slices == 1 || cache_.table().state(key) != kNoExpert) keys_.push_back(key);
  }
}

void Visit::begin() {
  loader_.poll();  // only prefetches can have failed; if such an expert is needed, its demand read will tell
  const ExpertCache::Groups groups =
      num_tokens() == 1 && loader_.slices() == 1
          ? cache_.begin_token(layer(), keys_)
          : cache_.begin_layer(layer(), keys_, needed_.counts,
                               num_tokens() > 1 ? Tokens::kMany : Tokens::kOne);
  pending_ = std::move(groups.absent);
  waiting_ = std::move(groups.loading);
  num_absent_ = static_cast<std::int64_t>(pending_.size());
  if (loader_.slices() == 1) {
    ready_ = std::move(groups.resident);
  } else {
    order_.emplace(keys_, needed_.experts.size(), pending_);
    order_->sort(pending_);
    order_->sort(waiting_);
    for (const std::int64_t key : groups.resident) order_->land(key);
    order_->hand_out(ready_);
  }
  if (!waiting_.empty() || !pending_.empty())  // what lands or is given up has its place, whatever happens
    for (Keys* each : {&ready_, &waiting_, &pending_}) each->reserve(keys_.size());
  if (!waiting_.empty()) loader_.reprioritise(waiting_, std::vector<double>(waiting_.size(), kDemand));
  if (const Keys unneeded = cache_.end_reservations(); !unneeded.empty()) loader_.drop(unneeded);
  queue_demand();
}

void Visit::read_ahead(const Keys& keys) {
  if (!open_) return;
  ExpertCache::Groups groups = cache_.by_state(keys);
  ahead_ = std::move(groups.absent);
  cache_.keep(groups.resident);
  refill();
}

const Keys& Visit::next_batch() {
  if (open_) cache_.unpin(batch_);
  const bool first = batch_.empty();
  batch_.clear();
  if (!open_) return batch_;
  if (!first) refill();
  const std::size_t most = order_ ? kBatchSlices : kBatch;
  const bool others_wait = !pending_.empty() || !ahead_.empty();
  const auto end = ready_.begin() +
                   static_cast<std::ptrdiff_t>(others_wait ? std::min(most, ready_.size()) : ready_.size());
  batch_.assign(ready_.begin(), end);
  ready_.erase(ready_.begin(), end);
  return batch_;
}

std::exception_ptr Visit::wait() {
  if (!open_) throw std::logic_error("the visit is closed");
  const Keys wanted = waiting_.empty() ? cache_.table().loading() : waiting_;
  if (wanted.empty()) throw std::logic_error("demand has no slot and nothing is on its way");
  const ExpertReads::Waited waited = loader_.wait(wanted);
  if (waiting_.empty()) {  // a prefetch that failed has left its slot too
    queue_demand();
    return nullptr;
  }
  if (waited.error) return waited.error;
  const auto has_landed = [&waited](std::int64_t key) {
    return std::find(waited.landed.begin(), waited.landed.end(), key) != waited.landed.end();
  };
  if (order_) {
    for (const std::int64_t key : waiting_)
      if (has_landed(key)) order_->land(key);
    order_->hand_out(ready_);
  } else {
    std::copy_if(waiting_.begin(), waiting_.end(), std::back_inserter(ready_), has_landed);
  }
  waiting_.erase(std::remove_if(waiting_.begin(), waiting_.end(), has_landed), waiting_.end());
  if (order_) queue_demand();
  return nullptr;
}

void Visit::close() {
  if (!std::exchange(open_, false)) return;
  if (pending_.empty() && cache_.pinned().empty()) return;
  cache_.let_go();
  for (Keys* each : {&ready_, &waiting_, &pending_, &ahead_}) each->clear();
}

// Gives slots that have become free, or may, to what waits for them: demand first.
void Visit::refill() {
  queue_demand();
  if (ahead_.empty() || !pending_.empty()) return;
  const std::vector<double> certain(ahead_.size(), kDemand);  // it will be needed
  const std::int64_t queued = loader_.prefetch(ahead_, certain);
  ahead_.erase(ahead_.begin(), ahead_.begin() + static_cast<std::ptrdiff_t>(queued));
}

void Visit::queue_demand() {
  if (pending_.empty()) return;
  const Keys chosen = make_room();
  if (chosen.empty()) return;
  loader_.demand(chosen);
  pending_.erase(pending_.begin(), pending_.begin() + static_cast<std::ptrdiff_t>(chosen.size()));
  waiting_.insert(waiting_.end(), chosen.begin(), chosen.end());
}

// The first of what is pending that have slots now.
Keys Visit::make_room() {
  // With nothing to compute or to wait for, the visit can only go on at the cost of the layers to come.
  const bool stuck = ready_.empty() && waiting_.empty();
  std::size_t wanted = pending_.size();
  if (order_ && num_tokens() == 1)
    wanted = std::min(wanted, kSlicesAhead - std::min(kSlicesAhead, waiting_.size()));
  const Keys first(pending_.begin(), pending_.begin() + static_cast<std::ptrdiff_t>(wanted));
  Keys chosen = cache_.make_room(first, stuck ? Leaving::kReservedToo : Leaving::kUnreserved);
  if (!chosen.empty() || !stuck || !order_) return chosen;
  Keys last(1);  // of slices that wait for others
  last[0] = order_->give_up();
  if (last[0] == SliceOrder::kNoKey) return chosen;
  cache_.release(last);
  pending_.push_back(last[0]);
  order_->sort(pending_);
  return cache_.make_room({pending_[0]}, Leaving::kUnreserved);
}

}  // namespace moeinf
