#include "moeinf/cache/expert_cache.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "moeinf/lowest.h"

namespace moeinf {

ExpertCache::ExpertCache(SlotTable& table, std::int64_t num_layers, std::int64_t num_experts, Scores scores)
    : table_(table),
      num_layers_(num_layers),
      num_experts_(num_experts),
      scores_(std::move(scores)),
      pinned_(table_.num_keys()),
      reserved_(table_.num_keys()),
      unused_(table_.num_keys()) {
  const auto num_keys = static_cast<std::int64_t>(table_.num_keys());
  if (num_layers < 1 || num_experts < 1 || num_keys % num_layers != 0 || num_keys / num_layers != num_experts)
    throw std::invalid_argument("there are other keys than layers times experts");
  ran_ = num_layers - 1;
}

ExpertCache::Groups ExpertCache::by_state(const Keys& keys) const {
  Groups groups;
  for (const std::int64_t key : keys) {
    switch (table_.state(key)) {
      case kAbsent:
        groups.absent.push_back(key);
        break;
      case kLoading:
        groups.loading.push_back(key);
        break;
      case kResident:
        groups.resident.push_back(key);
        break;
      default:
        break;
    }
  }
  return groups;
}

ExpertCache::Groups ExpertCache::begin_layer(std::int64_t layer, const Keys& keys,
                                             const std::vector<std::int64_t>& counts, Tokens tokens) {
  const std::size_t slices = counts.empty() ? 1 : keys.size() / counts.size();
  if (slices == 0 || (!counts.empty() && keys.size() != slices * counts.size()))
    throw std::invalid_argument("counts are one for each expert");
  require_layer(layer);
  Groups groups = by_state(keys);
  for (std::size_t i = 0; i < counts.size(); ++i) {
    bool whole = true, coming = true;
    for (std::size_t j = i * slices; j < (i + 1) * slices; ++j) {
      whole &= table_.state(keys[j]) == kResident;
      coming &= table_.state(keys[j]) != kAbsent;
    }
    (whole ? counts_.hits : counts_.misses) += counts[i];
    if (coming && !whole) counts_.late_hits += counts[i];
  }
  begin(layer, groups, keys, tokens);
  return groups;
}

ExpertCache::Groups ExpertCache::begin_token(std::int64_t layer, const Keys& keys) {
  require_layer(layer);
  Groups groups = by_state(keys);
  counts_.hits += static_cast<std::int64_t>(groups.resident.size());
  counts_.misses += static_cast<std::int64_t>(groups.loading.size() + groups.absent.size());
  counts_.late_hits += static_cast<std::int64_t>(groups.loading.size());
  begin(layer, groups, keys, Tokens::kOne);
  return groups;
}

void ExpertCache::require_layer(std::int64_t layer) const {
  if (layer < 0 || layer >= num_layers_) throw std::invalid_argument("there is no such layer");
}

void ExpertCache::begin(std::int64_t layer, const Groups& groups, const Keys& keys, Tokens tokens) {
  if (!pinned_.empty()) {  // by a visit that was not closed
    pinned_.clear();
    strays_ = true;
  }
  before_ = std::exchange(ran_, layer);
  layer_ = layer;
  tokens_ = tokens;
  if (!unused_.empty())
    for (const std::int64_t key : keys) counts_.prefetches_used += unused_.erase(key);
  pin(groups.loading);
  pin(groups.resident);
}

Keys ExpertCache::end_reservations() {
  const std::int64_t first = shared_ ? before_ + 1 : layer_;
  const auto behind = [this, first](std::int64_t layer) {
    return ((layer - first) % num_layers_ + num_layers_) % num_layers_;
  };
  const std::int64_t passed = behind(layer_);
  Keys ended;
  for (const std::int64_t key : reserved_.members())
    if (behind(key / num_experts_) <= passed) ended.push_back(key);
  if (!strays_ && ended.empty()) return {};
  strays_ = true;  // until they are told, for which memory may be missing
  for (const std::int64_t key : ended) reserved_.erase(key);
  Keys unneeded;
  for (const std::int64_t key : table_.loading())
    if (!pinned_.has(key) && !reserved_.has(key)) unneeded.push_back(key);
  strays_ = false;
  return unneeded;
}

void ExpertCache::pin(const Keys& keys) {
  for (const std::int64_t key : keys) pinned_.insert(key);
}

void ExpertCache::unpin(const Keys& keys) {
  for (const std::int64_t key : keys) pinned_.erase(key);
}

void ExpertCache::reserve(const Keys& keys) {
  for (const std::int64_t key : keys) reserved_.insert(key);
}

void ExpertCache::reserve_prefetched(const Keys& keys) {
  for (const std::int64_t key : keys) {
    reserved_.insert(key);
    unused_.insert(key);
  }
}

void ExpertCache::keep(const Keys& resident) {
  if (resident.empty()) return;
  const std::size_t size_class = table_.class_of(resident[0]);
  std::int64_t room = table_.slots_of(size_class) / 2;
  for (const std::int64_t key : reserved_.members()) room -= table_.class_of(key) == size_class;
  for (std::size_t i = 0; i < resident.size() && room > 0; ++i, --room) reserved_.insert(resident[i]);
}

void ExpertCache::let_go() {
  pinned_.clear();
  reserved_.clear();
  strays_ = true;
}

Keys ExpertCache::make_room(const Keys& keys, Leaving leaving, const Keys& also_held) {
  std::vector<std::int64_t> room(table_.num_classes(), 0);
  for (const std::int64_t key : keys) ++room[table_.class_of(key)];
  for (std::size_t each = 0; each < room.size(); ++each)
    if (room[each] > 0) room[each] = room_of(each, room[each], leaving, also_held);
  Keys chosen;
  chosen.reserve(keys.size());
  for (const std::int64_t key : keys)
    if (--room[table_.class_of(key)] >= 0) chosen.push_back(key);
  return chosen;
}

std::int64_t ExpertCache::room_of(std::size_t size_class, std::int64_t wanted, Leaving leaving,
                                  const Keys& also_held) {
  std::int64_t missing = wanted - table_.free_of(size_class);
  if (missing > 0) {
    missing -= evict(size_class, missing, also_held);
    if (missing > 0 && leaving == Leaving::kReservedToo && table_.free_of(size_class) == 0)
      evict_reserved(size_class, missing);
  }
  return std::min(wanted, table_.free_of(size_class));
}

std::int64_t ExpertCache::release(const Keys& keys) {
  const std::int64_t before = counts_.prefetches_wasted;
  for (const std::int64_t key : keys) {
    table_.free(key);
    pinned_.erase(key);
    reserved_.erase(key);
    counts_.prefetches_wasted += unused_.erase(key);
  }
  return counts_.prefetches_wasted - before;
}

void ExpertCache::renumber(Span<const std::int64_t> numbers) {
  table_.renumber(numbers);
  for (KeySet* held : {&pinned_, &reserved_, &unused_}) {
    for (std::size_t i = held->size();
         i-- > 0;)  // backwards: the last member takes the place of one that goes
      if (const std::int64_t key = held->members()[i]; table_.state(key) == kAbsent) held->erase(key);
  }
}

std::int64_t ExpertCache::evict(std::size_t size_class, std::int64_t wanted, const Keys& also_held) {
  const auto is_held = [this, size_class, &also_held](std::int64_t key) {
    return pinned_.has(key) || reserved_.has(key) || table_.class_of(key) != size_class ||
           std::find(also_held.begin(), also_held.end(), key) != also_held.end();
  };
  if (tokens_ == Tokens::kMany) {
    const std::int64_t slots = table_.slots_of(size_class);
    std::int64_t evictable = 0;
    for (std::size_t key = 0; key < table_.num_keys(); ++key)
      evictable += table_.states()[key] == kResident && !is_held(static_cast<std::int64_t>(key));
    wanted = std::min(wanted, evictable - std::max(slots / 2, slots - num_experts_));
  }
  if (wanted <= 0) return 0;
  const Keys victims = lowest(scores(), table_.states(), table_.num_keys(), kResident, is_held,
                              static_cast<std::size_t>(wanted));
  release(victims);
  return static_cast<std::int64_t>(victims.size());
}

void ExpertCache::evict_reserved(std::size_t size_class, std::int64_t wanted) {
  const auto is_held = [this, size_class](std::int64_t key) {
    return pinned_.has(key) || !reserved_.has(key) || table_.class_of(key) != size_class;
  };
  release(lowest(scores(), table_.states(), table_.num_keys(), kResident, is_held,
                 static_cast<std::size_t>(wanted)));
}

}  // namespace moeinf
