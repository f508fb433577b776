#include "moeinf/cache/loader.h"

#include <algorithm>

namespace moeinf {

void Loader::submit(const Keys& keys, const std::vector<double>& priorities) {
  reads_.submit(keys, cache_.table().assign(keys), priorities);
}

void Loader::demand(const Keys& keys) {
  submit(keys, std::vector<double>(keys.size(), kDemand));
  cache_.pin(keys);
  const auto count = static_cast<std::int64_t>(keys.size());
  cache_.counts().demand_reads += count;
  cache_.counts().demand_bytes += count * cache_.table().stride_bytes();
}

std::int64_t Loader::prefetch(Keys keys, std::vector<double> priorities) {
  const std::int64_t count = cache_.make_room(static_cast<std::int64_t>(keys.size()));
  if (count <= 0) return 0;
  keys.resize(static_cast<std::size_t>(count));
  priorities.resize(static_cast<std::size_t>(count));
  submit(keys, priorities);
  cache_.reserve(keys, true);
  cache_.counts().prefetches += count;
  cache_.counts().prefetch_bytes += count * cache_.table().stride_bytes();
  return count;
}

void Loader::drop(const Keys& keys) {
  cache_.counts().prefetch_bytes -= cancel(keys) * cache_.table().stride_bytes();
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
