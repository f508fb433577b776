#include <algorithm>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <random>
#include <stdexcept>
#include <vector>

#include "check.h"
#include "moeinf/cache/expert_cache.h"
#include "moeinf/cache/loader.h"
#include "moeinf/cache/slice_order.h"
#include "moeinf/cache/slot_table.h"
#include "moeinf/cache/visit.h"

using moeinf::ExpertCache;
using moeinf::ExpertReads;
using moeinf::Keys;
using moeinf::Loader;
using moeinf::SlotClasses;
using moeinf::SlotTable;
using moeinf::Tokens;
using moeinf::Visit;

namespace {

constexpr std::int64_t kLayers = 3, kExperts = 8, kTopK = 3, kStride = 4096, kStart = 512;
constexpr std::int64_t kKeys = kLayers * kExperts;

struct Interrupt : std::runtime_error {
  Interrupt() : std::runtime_error("interrupted") {}
};

// Reads that end in an order of their own; what has begun cannot be cancelled. Reads of one key fail.
class RandomReads final : public ExpertReads {
 public:
  RandomReads(unsigned seed, std::int64_t bad_key) : random_(seed), bad_key_(bad_key) {}

  // So many calls from now, each of which may be interrupted before and behind what it does.
  int until_interrupt = -1;
  const Keys& queued() const { return queued_; }

  void submit(const Keys& keys, const std::vector<std::int64_t>& offsets,
              const std::vector<double>& priorities) override {
    maybe_interrupt();
    CHECK(keys.size() == offsets.size() && keys.size() == priorities.size());
    for (const std::int64_t key : keys) {
      CHECK(std::find(queued_.begin(), queued_.end(), key) == queued_.end());
      queued_.push_back(key);
    }
    maybe_interrupt();
  }
  void reprioritise(const Keys&, const std::vector<double>&) override { maybe_interrupt(); }
  Keys known(const Keys& keys) override {
    maybe_interrupt();
    Keys known;
    for (const std::int64_t key : keys)
      if (std::find(queued_.begin(), queued_.end(), key) != queued_.end()) known.push_back(key);
    return known;
  }
  Keys cancel(const Keys& keys) override {
    maybe_interrupt();
    Keys cancelled;
    for (const std::int64_t key : keys)
      if (random_() % 2 == 0) cancelled.push_back(key);
    for (const std::int64_t key : cancelled) drop(key);
    maybe_interrupt();
    return cancelled;
  }
  Polled poll() override {
    maybe_interrupt();
    Polled polled;
    const Keys queued = queued_;
    for (const std::int64_t key : queued) {
      if (random_() % 3 != 0) continue;
      drop(key);
      (key == bad_key_ ? polled.failed : polled.done).push_back(key);
    }
    maybe_interrupt();
    return polled;
  }
  Waited wait_any(const Keys& keys) override {
    maybe_interrupt();
    CHECK(!keys.empty());
    const std::int64_t key = keys[random_() % keys.size()];
    drop(key);
    Waited waited;
    if (key == bad_key_) {
      waited.failed = key;
      waited.error = std::make_exception_ptr(std::runtime_error("unreadable"));
    } else {
      waited.landed = {key};
    }
    maybe_interrupt();
    return waited;
  }

 private:
  void maybe_interrupt() {
    if (until_interrupt >= 0 && until_interrupt-- == 0) throw Interrupt();
  }
  void drop(std::int64_t key) {
    const auto at = std::find(queued_.begin(), queued_.end(), key);
    CHECK(at != queued_.end());
    queued_.erase(at);
  }

  std::mt19937 random_;
  std::int64_t bad_key_;
  Keys queued_;
};

// Equal slots, or by turns of two sizes, the larger one for the experts of the second layer.
enum class Sizes { kOne, kTwo };  // of slots

SlotClasses classes_of(std::size_t num_slots, Sizes sizes) {
  SlotClasses classes{{kStride}, std::vector<std::uint8_t>(num_slots, 0), {}};
  if (sizes == Sizes::kOne) return classes;
  classes.bytes = {kStride, 3 * kStride};
  for (std::size_t slot = 0; slot < num_slots; ++slot) classes.of_slots[slot] = slot % 2;
  for (std::int64_t key = 0; key < kKeys; ++key) classes.of_keys.push_back(key / kExperts == 1);
  return classes;
}

// A cache of so many slots whose scores change from layer to layer.
struct Machine {
  Machine(std::size_t num_slots, unsigned seed, std::int64_t bad_key, Sizes sizes = Sizes::kOne,
          std::int64_t slices = 1)
      : classes(classes_of(num_slots, sizes)),
        table(kStart, classes, states, offsets),
        cache(table, kLayers, kExperts,
              [this](std::int64_t layer) {
                for (std::size_t key = 0; key < scores.size(); ++key)
                  scores[key] = static_cast<double>((key * 7 + static_cast<std::size_t>(layer) * 5) % 11);
                return scores.data();
              }),
        reads(seed, bad_key),
        loader(cache, reads, slices) {}

  void check() const {
    std::vector<std::int64_t> used = table.free_offsets(), of_class(classes.bytes.size(), 0);
    for (std::size_t each = 0; each < of_class.size(); ++each) of_class[each] = table.free_of(each);
    for (std::int64_t key = 0; key < kKeys; ++key) {
      const bool held = table.state(key) == moeinf::kLoading || table.state(key) == moeinf::kResident;
      CHECK(held == (table.offset(key) != SlotTable::kNoSlot));
      if (!held) continue;
      used.push_back(table.offset(key));
      ++of_class[table.class_of(key)];
    }
    std::sort(used.begin(), used.end());
    CHECK(static_cast<std::int64_t>(used.size()) == table.num_slots());
    std::int64_t begin = kStart;
    for (std::size_t slot = 0; slot < used.size(); ++slot) {
      CHECK(used[slot] == begin);
      begin += classes.bytes[classes.of_slots[slot]];
    }
    CHECK(table.end_offset() == begin);
    for (std::size_t each = 0; each < of_class.size(); ++each) CHECK(of_class[each] == table.slots_of(each));
  }

  SlotClasses classes;
  std::vector<std::uint8_t> states = std::vector<std::uint8_t>(kKeys, moeinf::kAbsent);
  std::vector<std::int64_t> offsets = std::vector<std::int64_t>(kKeys);
  std::vector<double> scores = std::vector<double>(kKeys);
  SlotTable table;
  ExpertCache cache;
  RandomReads reads;
  Loader loader;
};

// Takes a visit to its end, and closes it also where something is thrown; false: a read of it failed.
bool computed(Machine& machine, std::int64_t layer, const Keys& experts, std::int64_t num_tokens = 1,
              const Keys& ahead = {}) {
  Visit visit(machine.cache, machine.loader, {layer, num_tokens, experts, Keys(experts.size(), num_tokens)});
  const std::unique_ptr<Visit, void (*)(Visit*)> closed(&visit, [](Visit* each) { each->close(); });
  if (!ahead.empty()) visit.read_ahead(ahead);
  const std::int64_t slices = machine.loader.slices();
  Keys seen, wanted;
  for (const std::int64_t expert : experts)
    for (std::int64_t slice = 0; slice < slices; ++slice) wanted.push_back(expert * slices + slice);
  while (true) {
    const Keys batch = visit.next_batch();
    for (const std::int64_t key : batch) {
      CHECK(machine.table.state(key) == moeinf::kResident && machine.cache.pinned().has(key));
      seen.push_back(key - layer * kExperts);
      if (seen.back() % slices > 0) CHECK(seen[seen.size() - 2] == seen.back() - 1);
    }
    if (!batch.empty()) continue;
    if (visit.has_ended()) break;
    if (visit.wait()) {
      visit.close();
      return false;
    }
  }
  visit.close();
  std::sort(seen.begin(), seen.end());
  CHECK(seen == wanted);
  return true;
}

}  // namespace

TEST(every_expert_of_a_token_is_computed_once_however_few_slots_there_are) {
  for (unsigned seed = 0; seed < 60; ++seed) {
    const std::int64_t bad_key = seed % 3 == 0 ? static_cast<std::int64_t>(seed) % kKeys : -1;
    const Sizes sizes = seed % 2 == 1 ? Sizes::kTwo : Sizes::kOne;
    Machine machine((sizes == Sizes::kTwo ? 2 : 1) + seed % 12, seed, bad_key, sizes);
    std::mt19937 random(seed);
    std::int64_t activations = 0;
    for (int token = 0; token < 20; ++token) {
      for (std::int64_t layer = 0; layer < kLayers; ++layer) {
        Keys experts(kExperts);
        for (std::size_t i = 0; i < experts.size(); ++i) experts[i] = static_cast<std::int64_t>(i);
        std::shuffle(experts.begin(), experts.end(), random);
        experts.resize(kTopK);
        std::sort(experts.begin(), experts.end());
        activations += kTopK;
        const bool bad =
            std::find(experts.begin(), experts.end(), bad_key - layer * kExperts) != experts.end();
        CHECK(computed(machine, layer, experts) != bad);
        CHECK(machine.cache.pinned().empty());
        machine.check();
        const std::int64_t next = (layer + 1) % kLayers * kExperts;
        Keys ahead;
        for (const std::int64_t key : {next, next + 1, (next + kExperts) % kKeys})
          if (machine.table.state(key) == moeinf::kAbsent) ahead.push_back(key);
        if (machine.table.num_slots() >= 2 * kTopK)
          machine.loader.prefetch(ahead, std::vector<double>(ahead.size(), 0.5));
        machine.check();
      }
    }
    const moeinf::CacheCounts counts = std::exchange(machine.cache.counts(), {});
    CHECK(counts.hits + counts.misses == activations && counts.late_hits <= counts.misses);
    CHECK(counts.prefetches_used + counts.prefetches_wasted <= counts.prefetches);
  }
}

TEST(many_tokens_and_slices_go_through_few_slots_while_the_next_layer_is_read) {
  for (unsigned seed = 0; seed < 90; ++seed) {
    const std::int64_t slices = seed % 3 == 0 ? 1 : 2, num_experts = kExperts / slices;
    Machine machine(1 + seed % 11, seed, -1, Sizes::kOne, slices);
    std::mt19937 random(seed);
    for (int visit = 0; visit < 30; ++visit) {
      const std::int64_t layer = visit % kLayers, num_tokens = 1 + static_cast<std::int64_t>(random() % 3);
      Keys experts, ahead;
      for (std::int64_t expert = 0; expert < num_experts; ++expert)
        if (random() % 2 == 0) experts.push_back(expert);
      for (std::int64_t key = 0; num_tokens > 1 && key < kExperts; key += 2)
        ahead.push_back((layer + 1) % kLayers * kExperts + key);
      CHECK(computed(machine, layer, experts, num_tokens, ahead));
      CHECK(machine.cache.pinned().empty());
      machine.check();
    }
  }
}

TEST(slices_of_an_expert_come_in_order_and_first_those_of_which_more_is_there) {
  moeinf::SliceOrder order({0, 1, 2, 8, 9, 10, 16, 17, 18}, 3, {0, 1, 2, 9});
  const auto landed = [&order](const Keys& keys) {
    for (const std::int64_t key : keys) order.land(key);
    Keys ready;
    order.hand_out(ready);
    return ready;
  };
  CHECK(landed({8, 10, 16, 17, 18}) == (Keys{16, 17, 18, 8}));
  CHECK(landed({0}).empty());
  CHECK(landed({9, 1}) == (Keys{9, 10, 0, 1}));
  CHECK(order.give_up() == moeinf::SliceOrder::kNoKey);
  CHECK(landed({2}) == Keys{2});
  order = moeinf::SliceOrder({0, 1, 2, 3}, 1, {0});
  CHECK(landed({2, 1, 3}).empty());
  CHECK(order.give_up() == 3);
  CHECK(order.give_up() == 2);
  CHECK(landed({0}) == (Keys{0, 1}));
}

// Whatever a reader throws, and wherever: the visit is closed, as after any exception, and the next ones find
// nothing that is loading for ever.
TEST(an_interrupt_at_any_place_of_the_reads_leaves_no_expert_that_nobody_reads) {
  int num_interrupts = 0;
  for (unsigned run = 0; run < 1200; ++run) {
    const Sizes sizes = run % 2 == 1 ? Sizes::kTwo : Sizes::kOne;
    Machine machine((sizes == Sizes::kTwo ? 4 : 3) + run % 7, run, -1, sizes);
    std::mt19937 random(run);
    bool interrupted = false;
    machine.reads.until_interrupt = static_cast<int>(run) / 8;
    for (int visit = 0; visit < 24; ++visit) {
      const std::int64_t layer = visit % kLayers,
                         first = static_cast<std::int64_t>(random() % (kExperts - kTopK));
      const Keys experts = {first, first + 1, first + 2};
      try {
        CHECK(computed(machine, layer, experts));
        const std::int64_t next = (layer + 1) % kLayers * kExperts + first;
        if (machine.table.state(next) == moeinf::kAbsent && machine.table.num_slots() > 2 * kTopK)
          machine.loader.prefetch({next}, {0.5});
      } catch (const Interrupt&) {
        interrupted = true;
        CHECK(machine.cache.pinned().empty());
      }
      machine.check();
      if (!interrupted) continue;
      machine.reads.until_interrupt = -1;
      CHECK(computed(machine, layer, experts));
      for (const std::int64_t key : machine.table.loading())
        CHECK(std::count(machine.reads.queued().begin(), machine.reads.queued().end(), key) == 1);
      CHECK(machine.table.num_loading() == static_cast<std::int64_t>(machine.reads.queued().size()));
    }
    num_interrupts += interrupted;
  }
  CHECK(num_interrupts > 500);
}

TEST(what_a_visit_that_was_never_closed_has_pinned_is_let_go_by_the_next) {
  Machine machine(3, 1, -1);
  CHECK(computed(machine, 0, {0, 1, 2}));
  machine.cache.begin_token(0, {0, 1, 2});
  CHECK(machine.cache.pinned().size() == 3);
  CHECK(computed(machine, 1, {0, 1, 2}));
}

TEST(calls_that_cannot_be_meant_change_nothing) {
  Machine machine(3, 1, -1);
  const auto refused = [&machine](const std::function<void()>& call) {
    const bool refused = throws<std::logic_error>(call);  // invalid_argument, or out_of_range
    machine.check();
    return refused && machine.table.num_loading() == 0 && machine.cache.pinned().empty();
  };
  CHECK(refused([&] { machine.table.assign({4, 4}); }));
  CHECK(refused([&] { machine.table.assign({0, 1, -1}); }));
  CHECK(refused([&] { machine.table.land({0}); }));
  CHECK(refused([&] { machine.cache.begin_layer(0, {0}, {1, 1}, Tokens::kOne); }));
  CHECK(refused([&] { machine.cache.begin_layer(0, {0, 1, 2}, {1, 1}, Tokens::kOne); }));
  CHECK(refused([&] { machine.cache.begin_layer(kLayers, {0}, {1}, Tokens::kOne); }));
  CHECK(refused([&] { machine.cache.begin_token(-1, {0}); }));
  CHECK(refused([&] { machine.cache.make_room({kKeys}); }));
  CHECK(refused([&] { machine.loader.submit({0, 1}, {0.5}); }));
  CHECK(refused([&] { machine.loader.prefetch({0, 1}, {0.5}); }));
  for (const std::int64_t slices : {0, -1, 3})
    CHECK(refused([&] { Loader(machine.cache, machine.reads, slices); }));
  const auto table = [&machine](std::int64_t first, const SlotClasses& classes) {
    return [&machine, first, classes] { SlotTable(first, classes, machine.states, machine.offsets); };
  };
  const std::int64_t most = std::numeric_limits<std::int64_t>::max();
  CHECK(refused(table(-1, machine.classes)));
  CHECK(refused(table(0, {{most}, {0, 0}, {}})));
  machine.table.assign({0});
  machine.table.land({0});
  CHECK(refused(table(0, machine.classes)));
  CHECK(refused([&] { machine.table.limit(0); }));
  machine.states[0] = moeinf::kNoExpert;
  CHECK(throws<std::invalid_argument>([&] { machine.table.count(); }));
}

TEST(slots_of_each_size_go_and_come_again) {
  Machine machine(8, 1, -1, Sizes::kTwo);
  const Keys small = {0, 1, 2, 3}, large = {kExperts, kExperts + 1};
  machine.table.assign(small);
  CHECK(throws<std::invalid_argument>([&machine] { machine.table.assign({4}); }));
  machine.table.assign(large);
  machine.table.land(small);
  machine.table.land(large);
  machine.check();
  CHECK(machine.table.slot_bytes(kExperts) == 3 * kStride &&
        machine.table.offset(kExperts) == kStart + kStride);
  machine.cache.begin_token(0, {});
  const Keys coming = {kExperts + 2, 4, kExperts + 3, kExperts + 4, kExperts + 5};
  CHECK(machine.cache.make_room(coming) == coming);
  CHECK(machine.table.num_resident() == 3);
  machine.cache.release({1, 2, 3});
  machine.table.limit(3);
  machine.check();
  CHECK(machine.table.slots_of(0) == 2 && machine.table.slots_of(1) == 1);
  machine.table.limit(8);
  machine.check();
  const SlotClasses known = machine.classes;
  for (int fault = 0; fault < 4; ++fault) {
    SlotClasses wrong = known;
    if (fault == 0) wrong.bytes = {0, kStride};
    if (fault == 1) wrong.of_slots[0] = 2;
    if (fault == 2) wrong.of_keys[0] = 2;
    if (fault == 3) wrong.of_keys.clear();
    CHECK(throws<std::invalid_argument>([&] { SlotTable(kStart, wrong, machine.states, machine.offsets); }));
  }
}

TEST(a_visit_of_what_there_is_not_is_refused) {
  Machine machine(4, 1, -1);
  const std::int64_t below = -1, above = kExperts, first = 0;
  const auto visit = [&machine](std::int64_t layer, const std::int64_t* expert) {
    return [&machine, layer, expert] { Visit(machine.cache, machine.loader, {layer, 1, {*expert}, {1}}); };
  };
  CHECK(throws<std::invalid_argument>(visit(0, &below)));
  CHECK(throws<std::invalid_argument>(visit(0, &above)));
  CHECK(throws<std::invalid_argument>(visit(kLayers, &first)));
  CHECK(throws<std::invalid_argument>(visit(-1, &first)));
  CHECK(throws<std::invalid_argument>([&machine] { Visit(machine.cache, machine.loader, {0, 1, {0}, {}}); }));
  CHECK(throws<std::invalid_argument>([&machine] { machine.table.assign({0, 1, 2, 3, 4}); }));
  CHECK(throws<std::out_of_range>([&machine] { machine.table.assign({kKeys}); }));
  CHECK(throws<std::invalid_argument>([&machine] { machine.table.free(0); }));
  machine.check();
}

TEST(experts_that_leave_leave_whole_where_another_is_not_there) {
  Machine machine(8, 1, -1);
  machine.table.assign({0, 1});
  machine.table.land({0, 1});
  machine.cache.pin({0, 1});
  CHECK(throws<std::invalid_argument>([&] { machine.cache.release({0, 5, 1}); }));
  CHECK(machine.table.state(0) == moeinf::kAbsent && !machine.cache.pinned().has(0));
  CHECK(machine.table.state(1) == moeinf::kResident && machine.cache.pinned().has(1));
  machine.check();
}

TEST(slots_that_somebody_else_filled_are_taken_over_or_refused) {
  Machine machine(4, 1, -1);
  std::vector<std::int64_t> numbers(kKeys, SlotTable::kNoSlot);
  numbers[3] = 2;
  numbers[20] = 0;
  machine.cache.renumber(numbers);
  machine.check();
  CHECK(machine.table.num_resident() == 2 && machine.table.offset(3) == kStart + 2 * kStride);
  numbers[4] = 2;
  CHECK(throws<std::invalid_argument>([&] { machine.cache.renumber(numbers); }));
  numbers[4] = 4;
  CHECK(throws<std::invalid_argument>([&] { machine.cache.renumber(numbers); }));
  machine.check();
  machine.cache.release({3});
  machine.table.limit(2);
  machine.check();
  machine.table.limit(4);
  CHECK(throws<std::invalid_argument>([&] { machine.table.limit(5); }));
  machine.check();
  CHECK(machine.table.num_free() == 3);
}
