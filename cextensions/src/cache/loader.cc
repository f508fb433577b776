#include "moeinf/cache/loader.h"

#include <algorithm>
#include <iterator>
#include <stdexcept>
#include <utility>

namespace moeinf {

Loader::Loader(ExpertCache& cache, ExpertReads& reads, std::int64_t slices)
    : cache_(cache), reads_(reads), slices_(slices) {
  if (slices < 1 || cache.num_experts() % slices != 0)
    throw std::invalid_argument("the slices do not make up the experts of a layer");
}

// Asks the reads for something, and does what follows from their answer.
template <typename Call>
void Loader::ask(const Call& call) {
  settle();
  in_doubt_ = true;
  try {
    call();
  } catch (...) {
    try {
      settle();
    } catch (...) {  // the next call tries again
    }
    throw;
  }
  in_doubt_ = false;
}

// Frees the slots of experts that are loading by the table, and that nobody reads.
void Loader::settle() {
  if (!in_doubt_) return;
  const Keys loading = cache_.table().loading();
  Keys known = loading.empty() ? Keys() : reads_.known(loading), lost;
  std::sort(known.begin(), known.end());
  std::set_difference(loading.begin(), loading.end(), known.begin(), known.end(), std::back_inserter(lost));
  release_failed(lost);
  in_doubt_ = false;
}

void Loader::submit(const Keys& keys, const std::vector<double>& priorities) {
  if (keys.size() != priorities.size()) throw std::invalid_argument("priorities are one a key");
  ask([&] { reads_.submit(keys, cache_.table().assign(keys), priorities); });
}

void Loader::reprioritise(const Keys& keys, const std::vector<double>& priorities) {
  if (keys.size() != priorities.size()) throw std::invalid_argument("priorities are one a key");
  ask([&] { reads_.reprioritise(keys, priorities); });
}

std::int64_t Loader::cancel(const Keys& keys) {
  std::int64_t wasted = 0;
  ask([&] { wasted = cache_.release(reads_.cancel(keys)); });
  return wasted;
}

void Loader::demand(const Keys& keys) {
  submit(keys, std::vector<double>(keys.size(), kDemand));
  cache_.pin(keys);
  cache_.counts().demand_reads += static_cast<std::int64_t>(keys.size());
  cache_.counts().demand_bytes += slot_bytes(keys);
}

std::int64_t Loader::prefetch(const Keys& keys, const std::vector<double>& priorities) {
  if (keys.size() != priorities.size()) throw std::invalid_argument("priorities are one a key");
  const Keys chosen = cache_.make_room(keys);
  if (chosen.empty()) return 0;
  std::vector<double> theirs;
  for (std::size_t i = 0; i < keys.size() && theirs.size() < chosen.size(); ++i)
    if (keys[i] == chosen[theirs.size()]) theirs.push_back(priorities[i]);
  submit(chosen, theirs);
  cache_.reserve_prefetched(chosen);
  cache_.counts().prefetches += static_cast<std::int64_t>(chosen.size());
  cache_.counts().prefetch_bytes += slot_bytes(chosen);
  return static_cast<std::int64_t>(chosen.size());
}

void Loader::drop(const Keys& keys) {
  ask([&] {
    Keys prefetched;
    prefetched.reserve(keys.size());
    const Keys cancelled = reads_.cancel(keys);
    std::copy_if(cancelled.begin(), cancelled.end(), std::back_inserter(prefetched),
                 [this](std::int64_t key) { return cache_.unused().has(key); });
    cache_.release(cancelled);
    cache_.counts().prefetch_bytes -= slot_bytes(prefetched);
  });
}

std::int64_t Loader::slot_bytes(const Keys& keys) const {
  std::int64_t num_bytes = 0;
  for (const std::int64_t key : keys) num_bytes += cache_.table().slot_bytes(key);
  return num_bytes;
}

Keys Loader::poll() {
  if (cache_.table().num_loading() == 0) return {};
  ExpertReads::Polled polled;
  ask([&] {
    polled = reads_.poll();
    cache_.table().land(polled.done);
    if (!polled.failed.empty()) release_failed(polled.failed);
  });
  return std::move(polled.failed);
}

ExpertReads::Waited Loader::wait(const Keys& keys) {
  ExpertReads::Waited waited;
  ask([&] {
    waited = reads_.wait_any(keys);
    if (waited.failed >= 0) release_failed({waited.failed});
    cache_.table().land(waited.landed);
  });
  return waited;
}

void Loader::release_failed(const Keys& keys) {
  Keys others;
  for (const std::int64_t key : keys) {
    const std::int64_t first = key / slices_ * slices_;
    for (std::int64_t slice = first; slice < first + slices_; ++slice)
      if (cache_.table().state(slice) == kResident &&
          std::find(others.begin(), others.end(), slice) == others.end())
        others.push_back(slice);
  }
  cache_.release(keys);
  cache_.release(others);
}

}  // namespace moeinf
