// moeinf._native.Loader: reads that fill the slots of a cache, with the arrays and the counters of Python.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstdint>
#include <exception>
#include <stdexcept>
#include <utility>
#include <vector>

#include "cache/expert_cache.h"
#include "io/native_reader.h"
#include "moeinf/cache/loader.h"

namespace moeinf {

inline Keys copied(const KeyArray& keys) { return {keys.data(), keys.data() + keys.shape(0)}; }

// The loader, and the cache that it counts for.
class BoundLoader {
 public:
  BoundLoader(BoundExpertCache& cache, ExpertReads& reads, std::int64_t slices)
      : cache_(cache), loader_(cache.core(), reads, slices) {}

  Loader& core() { return loader_; }
  BoundExpertCache& cache() { return cache_; }

  void submit(const Keys& keys, const std::vector<double>& priorities) {
    if (keys.size() != priorities.size()) throw std::invalid_argument("priorities are one for each key");
    loader_.submit(keys, priorities);
  }
  void demand(const Keys& keys) {
    loader_.demand(keys);
    cache_.flush();
  }
  std::int64_t prefetch(const KeyArray& keys, const Priorities& priorities) {
    require_as_many(keys, priorities, "priorities");
    const std::int64_t count =
        loader_.prefetch(copied(keys), {priorities.data(), priorities.data() + priorities.shape(0)});
    cache_.flush();
    return count;
  }
  void reprioritise(const KeyArray& keys, const Priorities& priorities) {
    require_as_many(keys, priorities, "priorities");
    loader_.reprioritise(copied(keys), {priorities.data(), priorities.data() + priorities.shape(0)});
  }
  std::int64_t cancel(const Keys& keys) {
    const std::int64_t wasted = loader_.cancel(keys);
    cache_.flush();
    return wasted;
  }
  void drop(const Keys& keys) {
    loader_.drop(keys);
    cache_.flush();
  }
  Keys poll() {
    Keys failed = loader_.poll();
    cache_.flush();
    return failed;
  }
  Keys wait(const Keys& keys) {
    ExpertReads::Waited waited = loader_.wait(keys);
    cache_.flush();
    if (waited.error) std::rethrow_exception(waited.error);
    return std::move(waited.landed);
  }

 private:
  BoundExpertCache& cache_;
  Loader loader_;
};

}  // namespace moeinf
