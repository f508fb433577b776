#include "moeinf/cache/loader.h"

#include <algorithm>
#include <iterator>

namespace moeinf {

void Loader::submit(const Keys& keys, const std::vector<double>& priorities) {
  reads_.submit(keys, cache_.table().assign(keys), priorities);
}

void Loader::demand(const Keys& keys) {
  submit(keys, std::vector<double>(keys.size(), kDemand));
  cache_.pin(keys);
  cache_.counts().demand_reads += static_cast<std::int64_t>(keys.size());
  cache_.counts().demand_bytes += slot_bytes(keys);
}

std::int64_t Loader::prefetch(const Keys& keys, const std::vector<double>& priorities) {
  const Keys chosen = cache_.make_room(keys);
  if (chosen.empty()) return 0;
  std::vector<double> theirs;
  for (std::size_t i = 0; i < keys.size() && theirs.size() < chosen.size(); ++i)
    if (keys[i] == chosen[theirs.size()]) theirs.push_back(priorities[i]);
  submit(chosen, theirs);
  cache_.reserve(chosen, true);
  cache_.counts().prefetches += static_cast<std::int64_t>(chosen.size());
  cache_.counts().prefetch_bytes += slot_bytes(chosen);
  return static_cast<std::int64_t>(chosen.size());
}

void Loader::drop(const Keys& keys) {
  const Keys cancelled = reads_.cancel(keys);
  Keys prefetched;
  std::copy_if(cancelled.begin(), cancelled.end(), std::back_inserter(prefetched),
               [this](std::int64_t key) { return cache_.unused().has(key); });
  cache_.release(cancelled);
  cache_.counts().prefetch_bytes -= slot_bytes(prefetched);
}

std::int64_t Loader::slot_bytes(const Keys& keys) const {
  std::int64_t num_bytes = 0;
  for (const std::int64_t key : keys) num_bytes += cache_.table().slot_bytes(key);
  return num_bytes;
}

Keys Loader::poll() {
  if (cache_.table().num_loading() == 0) return {};
  ExpertReads::Polled polled = reads_.poll();
  cache_.table().land(polled.done);
  if (!polled.failed.empty()) release_failed(polled.failed);
  return std::move(polled.failed);
}

ExpertReads::Waited Loader::wait(const Keys& keys) {
  ExpertReads::Waited waited = reads_.wait_any(keys);
  if (waited.failed >= 0) release_failed({waited.failed});
  cache_.table().land(waited.landed);
  return waited;
}

void Loader::release_failed(const Keys& keys) {
  cache_.release(keys);
  if (slices_ == 1) return;
  Keys others;
  for (const std::int64_t key : keys) {
    const std::int64_t first = key / slices_ * slices_;
    for (std::int64_t slice = first; slice < first + slices_; ++slice)
      if (cache_.table().state(slice) == kResident &&
          std::find(others.begin(), others.end(), slice) == others.end())
        others.push_back(slice);
  }
  cache_.release(others);
}

}  // namespace moeinf
