#include "moeinf/cache/token_visit.h"

#include <algorithm>
#include <stdexcept>
#include <utility>
#include <vector>

namespace moeinf {

TokenVisit::TokenVisit(ExpertCache& cache, Loader& loader, std::int64_t layer, const std::int64_t* experts,
                       std::size_t num_experts)
    : cache_(cache), loader_(loader), layer_(layer) {
  if (layer < 0 || layer >= cache.num_layers()) throw std::invalid_argument("there is no such layer");
  keys_.reserve(num_experts);
  for (std::size_t i = 0; i < num_experts; ++i) {
    if (experts[i] < 0 || experts[i] >= cache.num_experts())
      throw std::invalid_argument("there is no such expert");
    keys_.push_back(layer * cache.num_experts() + experts[i]);
  }
  try {
    loader_
        .poll();  // only prefetches can have failed; if such an expert is needed, its demand read will tell
    ExpertCache::Groups groups = cache_.begin_token(layer, keys_);
    pending_ = std::move(groups.absent);
    waiting_ = std::move(groups.loading);
    ready_ = std::move(groups.resident);
    num_absent_ = static_cast<std::int64_t>(pending_.size());
    if (!waiting_.empty()) loader_.reprioritise(waiting_, std::vector<double>(waiting_.size(), kDemand));
    if (const Keys unneeded = cache_.end_reservations(); !unneeded.empty()) loader_.drop(unneeded);
    queue_demand();
  } catch (...) {
    close();
    throw;
  }
}

const Keys& TokenVisit::next_batch() {
  const Keys last = std::exchange(batch_, {});
  if (!open_) return batch_;
  if (!last.empty()) {
    cache_.unpin(last);
    queue_demand();
  }
  const auto size =
      static_cast<std::ptrdiff_t>(pending_.empty() ? ready_.size() : std::min(kBatch, ready_.size()));
  batch_.assign(ready_.begin(), ready_.begin() + size);
  ready_.erase(ready_.begin(), ready_.begin() + size);
  return batch_;
}

std::exception_ptr TokenVisit::wait() {
  if (!open_) throw std::logic_error("the visit is closed");
  ready_.reserve(ready_.size() + waiting_.size());  // what lands has its place here, whatever happens
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
  std::copy_if(waiting_.begin(), waiting_.end(), std::back_inserter(ready_), has_landed);
  waiting_.erase(std::remove_if(waiting_.begin(), waiting_.end(), has_landed), waiting_.end());
  return nullptr;
}

void TokenVisit::close() {
  if (!std::exchange(open_, false)) return;
  if (pending_.empty() && cache_.pinned().empty()) return;
  cache_.let_go();
  ready_.clear();
  waiting_.clear();
  pending_.clear();
}

void TokenVisit::queue_demand() {
  if (pending_.empty()) return;
  // With nothing to compute or to wait for, the visit can only go on at the cost of the layers to come.
  const bool stuck = ready_.empty() && waiting_.empty();
  const Keys chosen = cache_.make_room(pending_, {}, stuck);
  if (chosen.empty()) return;
  waiting_.reserve(waiting_.size() + chosen.size());
  loader_.demand(chosen);
  pending_.erase(pending_.begin(), pending_.begin() + static_cast<std::ptrdiff_t>(chosen.size()));
  waiting_.insert(waiting_.end(), chosen.begin(), chosen.end());
}

}  // namespace moeinf
