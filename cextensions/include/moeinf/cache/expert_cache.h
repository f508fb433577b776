// Experts of all layers in the slots of one memory, and the decision which of them leave. No I/O.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "moeinf/cache/key_set.h"
#include "moeinf/cache/slot_table.h"

namespace moeinf {

// What the cache did since it was asked last; moeinf.runtime.cache.stats.CacheStats says what each is.
struct CacheCounts {
  std::int64_t hits = 0, misses = 0, late_hits = 0;
  std::int64_t prefetches = 0, prefetches_used = 0, prefetches_wasted = 0;
  std::int64_t demand_reads = 0, demand_bytes = 0, prefetch_bytes = 0;
};

enum class Tokens { kOne, kMany };                 // of which a layer runs at once
enum class Leaving { kUnreserved, kReservedToo };  // which experts may leave for others

// An expert is pinned from the moment its layer asks for it until it has been computed, and reserved while it
// is kept for a layer that has not run yet.
class ExpertCache {
 public:
  // By key, while a layer runs: the smallest leaves first. Valid until the next call.
  using Scores = std::function<const double*(std::int64_t layer)>;

  struct Groups {
    Keys absent, loading, resident;  // each in the order that was asked for
  };

  ExpertCache(SlotTable& table, std::int64_t num_layers, std::int64_t num_experts, Scores scores);

  SlotTable& table() { return table_; }
  const SlotTable& table() const { return table_; }
  std::int64_t num_layers() const { return num_layers_; }
  std::int64_t num_experts() const { return num_experts_; }
  std::int64_t layer() const { return layer_; }  // that runs
  const KeySet& pinned() const { return pinned_; }
  const KeySet& reserved() const { return reserved_; }
  const KeySet& unused() const { return unused_; }  // prefetched, and not used so far
  const double* scores() { return scores_(layer_); }

  // Splits the keys by state; those that no expert has are left out.
  Groups by_state(const Keys& keys) const;

  // Says that `layer` needs the experts `keys`, each for as many activations as `counts` says; counts hits.
  // An expert in slices has one count for all of them, and is a hit where all are resident. Returns those
  // that are absent, loading and resident; the last two are pinned, and nothing else is. Throws
  // std::invalid_argument, and changes nothing, for a layer that there is not, and for counts that are not
  // one for each expert.
  Groups begin_layer(std::int64_t layer, const Keys& keys, const std::vector<std::int64_t>& counts,
                     Tokens tokens);
  // The same for a single token, which uses each of the experts once; none of them is cut into slices.
  Groups begin_token(std::int64_t layer, const Keys& keys);
  // Keeps nothing for the running layer any longer; returns the experts on their way that nobody needs now.
  // Of a model that several machines share, a layer that has none of this one's experts does not run here:
  // nothing is kept for those either that lie between the running layer and the one before.
  Keys end_reservations();
  void share(bool shared) { shared_ = shared; }  // whether others have some of the experts

  void pin(const Keys& keys);
  void unpin(const Keys& keys);
  // Keeps experts until their layer has run.
  void reserve(const Keys& keys);
  // The same of experts that are being read for that alone.
  void reserve_prefetched(const Keys& keys);
  // Reserves residents of a layer to come, as far as no more than half of the slots of their class is kept.
  void keep(const Keys& resident);
  // Gives up all pins and reservations. The next end_reservations tells which reads go on for nobody.
  void let_go();

  // Evicts what is valued least until there are free slots for these absent experts; returns those that find
  // one, the first ones of each class of slots. Only experts in slots of that class leave for them, but
  // neither what is pinned or reserved, nor what is also_held. kReservedToo: where that leaves not a single
  // slot of the class free, reserved experts leave too.
  //
  // A pass of many tokens takes nearly every expert of its layer through the slots once. For that it may use
  // as many slots as a layer has experts, at most half of the class: in simulation fewer let the disk wait,
  // and more cost reads, as the others keep what is valued most for the layers to come and for decode.
  Keys make_room(const Keys& keys, Leaving leaving = Leaving::kUnreserved, const Keys& also_held = {});
  // Takes their slots from these experts; returns how many of them were prefetched in vain. Throws
  // std::invalid_argument for one that has none; those in front of it have left then.
  std::int64_t release(const Keys& keys);
  // As of SlotTable; nothing is held of what is not there any more.
  void renumber(Span<const std::int64_t> numbers);

  CacheCounts& counts() { return counts_; }  // whoever asks for them sets them to 0

 private:
  // How many of `wanted` slots of a class are free, once others have left them.
  std::int64_t room_of(std::size_t size_class, std::int64_t wanted, Leaving leaving, const Keys& also_held);
  std::int64_t evict(std::size_t size_class, std::int64_t wanted, const Keys& also_held);
  void evict_reserved(std::size_t size_class, std::int64_t wanted);
  void require_layer(std::int64_t layer) const;
  void begin(std::int64_t layer, const Groups& groups, const Keys& keys, Tokens tokens);

  SlotTable& table_;
  std::int64_t num_layers_, num_experts_;
  Scores scores_;
  KeySet pinned_, reserved_, unused_;
  CacheCounts counts_;
  std::int64_t layer_ = 0;
  std::int64_t ran_ = 0, before_ = 0;  // the last layer that has begun, and the one before it
  Tokens tokens_ = Tokens::kOne;       // with which it runs
  bool shared_ = false;
  bool strays_ = false;  // reads may be under way that nobody needs
};

}  // namespace moeinf
