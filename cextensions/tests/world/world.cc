#include "world.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <exception>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <queue>
#include <random>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "check.h"
#include "moeinf/cache/expert_cache.h"
#include "moeinf/cache/loader.h"
#include "moeinf/cache/slot_table.h"
#include "moeinf/cache/visit.h"
#include "moeinf/io/crc32c.h"
#include "moeinf/io/file_set.h"
#include "moeinf/io/scheduler.h"
#include "moeinf/io/segment_read.h"
#include "moeinf/policy/next_use.h"
#include "moeinf/policy/prefetch_rank.h"
#include "moeinf/policy/use_model.h"

using moeinf::BlockSum;
using moeinf::Compared;
using moeinf::ExpertReads;
using moeinf::kBlockBytes;
using moeinf::Keys;
using moeinf::Piece;
using moeinf::Request;
using moeinf::Scheduler;
using moeinf::Segment;
using moeinf::SlotTable;
using moeinf::Visit;

namespace {

using Clock = Scheduler::Clock;

Clock::time_point simulated_now;  // of the world that is played

Clock::time_point now_of_world() { return simulated_now; }

struct Interrupt : std::runtime_error {
  Interrupt() : std::runtime_error("interrupted") {}
};

class Random {
 public:
  explicit Random(std::uint64_t seed) : engine_(seed * 0x9e3779b97f4a7c15u + 1) {}

  std::int64_t between(std::int64_t least, std::int64_t most) {  // both may come
    return least + static_cast<std::int64_t>(engine_() % static_cast<std::uint64_t>(most - least + 1));
  }
  bool one_in(std::int64_t n) { return between(1, n) == 1; }
  double share() { return static_cast<double>(engine_() >> 11) * 0x1p-53; }

 private:
  std::mt19937_64 engine_;
};

// What a seed decides once.
struct Sizes {
  explicit Sizes(Random& random)
      : layers(random.between(1, 5)),
        slices(random.one_in(3) ? random.between(2, 4) : 1),
        experts(random.between(4, 16)),
        keys_of_layer(experts * slices),
        keys(layers * keys_of_layer),
        top_k(random.between(1, std::min<std::int64_t>(4, experts))),
        pieces(random.between(1, 3)),
        sessions(random.between(1, 6)),
        disks(random.one_in(3) ? static_cast<int>(random.between(2, 3)) : 1),
        is_divided(disks == 2 && random.one_in(2)),
        classes(random.one_in(3) ? 2 : 1),
        sums(random.one_in(4)   ? Sums::kNone
             : random.one_in(2) ? Sums::kOnce
                                : Sums::kAlways),
        error_every(random.one_in(2) ? random.between(20, 400) : 0),
        short_every(random.one_in(2) ? random.between(2, 30) : 0),
        flip_every(sums == Sums::kAlways && random.one_in(2) ? random.between(20, 400) : 0),
        interrupt_every(random.one_in(4) ? random.between(50, 500) : 0),
        shared(random.one_in(6)) {}

  enum class Sums { kNone, kOnce, kAlways };

  std::int64_t layers, slices, experts, keys_of_layer, keys, top_k, pieces, sessions;
  int disks;
  bool is_divided;
  std::size_t classes;
  Sums sums;
  std::string told() const {
    std::string told;
    const auto tell = [&told](const char* what, std::int64_t value) {
      told += (told.empty() ? "" : ", ") + std::to_string(value) + " " + what;
    };
    tell("layers", layers);
    tell("experts", experts);
    tell("slices", slices);
    tell("pieces", pieces);
    tell("disks", disks);
    tell("divided", is_divided);
    tell("classes", static_cast<std::int64_t>(classes));
    tell("sums", static_cast<std::int64_t>(sums));
    return told;
  }

  std::int64_t error_every, short_every, flip_every;  // reads of the disk; 0: never
  std::int64_t interrupt_every;                       // calls of a reader
  bool shared;                                        // other machines have some of the experts
};

// Where the pieces of each expert, or slice, lie in the files of the layers, and what they are.
class Files {
 public:
  Files(const Sizes& sizes, Random& random) : sizes_(sizes) {
    std::vector<std::int64_t> piece_bytes;
    for (std::int64_t piece = 0; piece < sizes.pieces; ++piece)
      piece_bytes.push_back(random.one_in(2) ? random.between(1, 2) * kBlockBytes : random.between(1, 9000));
    places_.resize(static_cast<std::size_t>(sizes.keys));
    slot_bytes_.assign(sizes.classes, kBlockBytes);
    for (std::int64_t layer = 0; layer < sizes.layers; ++layer) {
      const std::int64_t factor = class_of(layer) == 1 ? 2 : 1;
      std::int64_t end = 0;
      std::vector<std::int64_t> in_slot(static_cast<std::size_t>(sizes.keys_of_layer), 0);
      for (const std::int64_t bytes : piece_bytes) {
        for (std::int64_t key = 0; key < sizes.keys_of_layer; ++key) {
          Place place{end, bytes * factor, in_slot[static_cast<std::size_t>(key)]};
          end += place.num_bytes;
          in_slot[static_cast<std::size_t>(key)] += place.blocks_end() - place.blocks_begin();
          places_[static_cast<std::size_t>(layer * sizes.keys_of_layer + key)].push_back(place);
        }
      }
      std::int64_t& slot = slot_bytes_[class_of(layer)];
      slot = std::max(slot, *std::max_element(in_slot.begin(), in_slot.end()));
      std::vector<unsigned char> data(static_cast<std::size_t>(end));
      for (std::size_t at = 0; at < data.size(); at += 8) {
        const std::uint64_t word = (static_cast<std::uint64_t>(random.between(0, 1 << 30)) << 31) ^ at;
        std::memcpy(&data[at], &word, std::min<std::size_t>(8, data.size() - at));
      }
      contents_.push_back(std::move(data));
    }
    note_sums();
  }

  struct Place {
    std::int64_t offset, num_bytes, in_slot;

    std::int64_t blocks_begin() const { return offset / kBlockBytes * kBlockBytes; }
    std::int64_t blocks_end() const {
      return (offset + num_bytes + kBlockBytes - 1) / kBlockBytes * kBlockBytes;
    }
  };

  std::size_t class_of(std::int64_t layer) const { return sizes_.classes == 2 && layer % 2 == 1 ? 1 : 0; }
  std::int64_t slot_bytes(std::size_t size_class) const { return slot_bytes_[size_class]; }
  const std::vector<unsigned char>& content(std::int64_t layer) const {
    return contents_[static_cast<std::size_t>(layer)];
  }
  const std::vector<Place>& places(std::int64_t key) const { return places_[static_cast<std::size_t>(key)]; }

  // As Reader makes it of what it is asked for.
  Request request(std::int64_t key, double priority, unsigned char* slot) {
    Request request;
    request.key = key;
    request.priority = priority;
    const std::int64_t layer = key / sizes_.keys_of_layer;
    const auto file_bytes = static_cast<std::int64_t>(content(layer).size());
    for (std::size_t piece = 0; piece < places(key).size(); ++piece) {
      const Place& place = places(key)[piece];
      Piece made{static_cast<int>(layer), place.blocks_begin(), slot + place.in_slot,
                 std::min(place.blocks_end(), file_bytes) - place.blocks_begin()};
      made.summed_from = place.offset - place.blocks_begin();
      made.summed_bytes = place.num_bytes;
      if (sizes_.sums != Sizes::Sums::kNone) {
        made.sum = &sums_[{key / sizes_.slices, piece}];
        made.place_in_sum = key % sizes_.slices * place.num_bytes;
      }
      if (piece == 0) request.piece = made;
      if (piece > 0) request.more.push_back(made);
    }
    return request;
  }

  bool is_right(std::int64_t key, const unsigned char* slot) const {
    const std::vector<unsigned char>& data = content(key / sizes_.keys_of_layer);
    for (const Place& place : places(key)) {
      const unsigned char* found = slot + place.in_slot + (place.offset - place.blocks_begin());
      if (std::memcmp(found, &data[static_cast<std::size_t>(place.offset)],
                      static_cast<std::size_t>(place.num_bytes)) != 0)
        return false;
    }
    return true;
  }

 private:
  // A block of all slices of an expert has one sum.
  void note_sums() {
    if (sizes_.sums == Sizes::Sums::kNone) return;
    const Compared compared = sizes_.sums == Sizes::Sums::kOnce ? Compared::kOnce : Compared::kAlways;
    for (std::int64_t key = 0; key < sizes_.keys; key += sizes_.slices) {
      for (std::size_t piece = 0; piece < places(key).size(); ++piece) {
        const Place& first = places(key)[piece];
        const std::int64_t num_bytes = first.num_bytes * sizes_.slices;
        BlockSum& sum = sums_[{key / sizes_.slices, piece}];
        sum.expected =
            moeinf::crc32c(&content(key / sizes_.keys_of_layer)[static_cast<std::size_t>(first.offset)],
                           static_cast<std::size_t>(num_bytes));
        sum.compared = compared;
        sum.num_bytes = num_bytes;
      }
    }
  }

  const Sizes& sizes_;
  std::vector<std::vector<Place>> places_;  // by key: of each piece
  std::vector<std::int64_t> slot_bytes_;    // by class
  std::vector<std::vector<unsigned char>> contents_;
  std::map<std::pair<std::int64_t, std::size_t>, BlockSum> sums_;  // by expert and piece
};

moeinf::Copies copies_of(const Sizes& sizes) {
  moeinf::Copies copies;
  copies.num_disks = sizes.disks;
  copies.num_files = static_cast<int>(sizes.layers);
  if (sizes.is_divided)
    copies.cuts.assign(static_cast<std::size_t>(sizes.layers), {4 * kBlockBytes, kBlockBytes});
  return copies;
}

// The disks, and what carries out the segments of the scheduler on them: awake as long as it finds something
// to do, then asleep until it is woken.
class Disks {
 public:
  Disks(const Sizes& sizes, const Files& files, Scheduler& scheduler, Random& random, WorldCounts& counts)
      : sizes_(sizes), files_(files), scheduler_(scheduler), random_(random), counts_(counts) {
    for (int disk = 0; disk < sizes.disks; ++disk) latency_.push_back(random.between(10, 2000));
  }

  // The scheduler has said that something may be issued.
  void wake() {
    if (wakes_at_ == kNever) wakes_at_ = ticks() + random_.between(0, 20);
  }
  bool idles() const { return flights_.empty() && wakes_at_ == kNever; }
  // To the next thing that happens.
  void go_on() {
    CHECK(!idles());
    if (flights_.empty() || wakes_at_ <= flights_.top().ends_at) {
      set_ticks(std::max(ticks(), std::exchange(wakes_at_, kNever)));
    } else {
      const Flight flight = flights_.top();
      flights_.pop();
      set_ticks(flight.ends_at);
      carry_out(flight.segment);
    }
    issue();
    ++counts_.operations;
  }
  // Where nothing is under way, nothing may be waiting for a wake-up that has not come.
  void check_awake() {
    if (!idles()) return;
    Segment segment;
    CHECK(!scheduler_.try_next(&segment) && "a wake-up was lost");
  }

  std::function<bool(const Segment&)> may_write;  // whether the memory of a segment is still its own
  std::set<std::int64_t> spoilt;  // keys that a fault of the disk has met since they were asked for
  std::int64_t num_bytes = 0;     // delivered
  std::vector<std::int64_t> bytes_of = std::vector<std::int64_t>(16, 0);

  std::int64_t ticks() const { return simulated_now.time_since_epoch().count() / 1000; }

 private:
  static constexpr std::int64_t kNever = std::numeric_limits<std::int64_t>::max();

  struct Flight {
    std::int64_t ends_at, order;
    Segment segment;

    bool operator<(const Flight& other) const {  // the next one is the greatest
      return std::pair(ends_at, order) > std::pair(other.ends_at, other.order);
    }
  };

  void set_ticks(std::int64_t ticks) { simulated_now = Clock::time_point(std::chrono::microseconds(ticks)); }

  void issue() {
    Segment segment;
    while (scheduler_.try_next(&segment)) {
      CHECK(segment.disk >= 0 && segment.disk < sizes_.disks);
      const std::int64_t takes =
          1 + latency_[static_cast<std::size_t>(segment.disk)] * random_.between(1, 20) / 10;
      flights_.push({ticks() + takes, next_order_++, segment});
    }
  }

  void carry_out(const Segment& segment) {
    CHECK(may_write(segment));
    const std::int64_t layer = segment.file % sizes_.layers;
    CHECK(segment.file / sizes_.layers == segment.disk);
    const std::vector<unsigned char>& data = files_.content(layer);
    const auto asking = random_.one_in(2) ? moeinf::Asking::kOrdinary : moeinf::Asking::kOther;
    moeinf::SegmentRead read(segment, asking);
    bool goes_on = true;
    while (goes_on) {
      const std::int64_t left = static_cast<std::int64_t>(data.size()) - read.offset();
      const std::int64_t asked = std::min(read.num_bytes(), left);
      std::int64_t answer = asked;
      if (happens(sizes_.error_every)) {
        answer = -(random_.one_in(2) ? EIO : random_.one_in(2) ? EINTR : EAGAIN);
      } else if (happens(sizes_.error_every) || left <= 0) {
        answer = 0;
      } else if (happens(sizes_.short_every)) {
        answer = random_.between(1, asked);
      }
      if (answer > 0)
        std::memcpy(read.destination(), &data[static_cast<std::size_t>(read.offset())],
                    static_cast<std::size_t>(answer));
      goes_on = read.advance(answer);
    }
    if (read.outcome().error != 0 || read.outcome().ended) spoil(segment);
    if (happens(sizes_.flip_every) && segment.summed_bytes > 0) {
      segment.destination[segment.summed_from + random_.between(0, segment.summed_bytes - 1)] ^=
          static_cast<unsigned char>(1 << random_.between(0, 7));
      spoil(segment);
    }
    const moeinf::Outcome outcome = read.take_outcome();
    num_bytes += outcome.num_bytes_read;
    bytes_of[static_cast<std::size_t>(segment.disk)] += outcome.num_bytes_read;
    scheduler_.finished(segment, outcome);
  }

  bool happens(std::int64_t every) { return every > 0 && random_.one_in(every); }

  // Of what is wrong with one slice, another one may hear.
  void spoil(const Segment& segment) {
    ++counts_.faults;
    const std::int64_t first = segment.key / sizes_.slices * sizes_.slices;
    for (std::int64_t key = first; key < first + sizes_.slices; ++key) spoilt.insert(key);
  }

  const Sizes& sizes_;
  const Files& files_;
  Scheduler& scheduler_;
  Random& random_;
  WorldCounts& counts_;
  std::vector<std::int64_t> latency_;  // by disk: microseconds
  std::priority_queue<Flight> flights_;
  std::int64_t wakes_at_ = kNever, next_order_ = 0;
};

// Over the scheduler as Reader is, but that waiting lets the disks go on.
class SimulatedReads final : public ExpertReads {
 public:
  SimulatedReads(const Sizes& sizes, Files& files, Scheduler& scheduler, Disks& disks, Random& random,
                 WorldCounts& counts, unsigned char* memory)
      : sizes_(sizes),
        files_(files),
        scheduler_(scheduler),
        disks_(disks),
        random_(random),
        counts_(counts),
        memory_(memory) {}

  bool may_interrupt = false;

  void submit(const Keys& keys, const std::vector<std::int64_t>& offsets,
              const std::vector<double>& priorities) override {
    const Interruptible call(*this);
    std::vector<Request> requests;
    for (std::size_t i = 0; i < keys.size(); ++i)
      requests.push_back(files_.request(keys[i], priorities[i], memory_ + offsets[i]));
    if (sizes_.slices == 1)
      for (const std::int64_t key : keys) disks_.spoilt.erase(key);
    if (scheduler_.submit(requests)) disks_.wake();
    interrupt();
  }
  void reprioritise(const Keys& keys, const std::vector<double>& priorities) override {
    const Interruptible call(*this);
    if (scheduler_.reprioritise(keys, priorities)) disks_.wake();
    interrupt();
  }
  Keys cancel(const Keys& keys) override {
    const Interruptible call(*this);
    Keys cancelled = scheduler_.cancel(keys);
    interrupt();
    return cancelled;
  }
  Keys known(const Keys& keys) override {
    const Interruptible call(*this);
    return scheduler_.known(keys);
  }
  Polled poll() override {
    const Interruptible call(*this);
    const Scheduler::Polled polled = scheduler_.poll();
    for (const std::int64_t key : polled.failed) CHECK(disks_.spoilt.count(key) > 0);
    interrupt();
    return {polled.done, polled.failed};
  }
  Waited wait_any(const Keys& keys) override {
    const Interruptible call(*this);
    while (true) {
      const Scheduler::Waited waited = scheduler_.wait_any(keys, std::chrono::milliseconds(0));
      if (waited.failed) {
        CHECK(disks_.spoilt.count(waited.failed->key) > 0);
        interrupt();
        return {{}, waited.failed->key, std::make_exception_ptr(std::runtime_error("unreadable"))};
      }
      if (!waited.done.empty()) {
        interrupt();
        return {waited.done, -1, nullptr};
      }
      disks_.check_awake();
      CHECK(!disks_.idles() && "a wait for what nobody reads");
      disks_.go_on();
      scheduler_.check_integrity();
    }
  }

 private:
  // Counts a call, which may be interrupted before it has done anything.
  struct Interruptible {
    explicit Interruptible(SimulatedReads& reads) {
      ++reads.counts_.operations;
      reads.interrupt();
    }
  };

  void interrupt() {
    if (!may_interrupt || sizes_.interrupt_every == 0 || !random_.one_in(sizes_.interrupt_every)) return;
    ++counts_.interrupts;
    throw Interrupt();
  }

  const Sizes& sizes_;
  Files& files_;
  Scheduler& scheduler_;
  Disks& disks_;
  Random& random_;
  WorldCounts& counts_;
  unsigned char* memory_;
};

moeinf::SlotClasses slots_of(const Sizes& sizes, const Files& files, Random& random) {
  moeinf::SlotClasses classes;
  for (std::size_t each = 0; each < sizes.classes; ++each) classes.bytes.push_back(files.slot_bytes(each));
  const std::int64_t most = sizes.keys + 2;
  const std::int64_t num_slots = random.one_in(5)
                                     ? random.between(1, 4)
                                     : random.between(std::min(most, sizes.top_k * sizes.slices), most);
  for (std::size_t slot = 0; slot < static_cast<std::size_t>(num_slots) * sizes.classes; ++slot)
    classes.of_slots.push_back(static_cast<std::uint8_t>(slot % sizes.classes));
  if (sizes.classes > 1)
    for (std::int64_t key = 0; key < sizes.keys; ++key)
      classes.of_keys.push_back(static_cast<std::uint8_t>(files.class_of(key / sizes.keys_of_layer)));
  return classes;
}

// One who asks: its tokens go through the layers, one visit a layer.
struct Session {
  std::int64_t num_tokens = 1;
  std::int64_t taste = 0;  // which experts it likes
};

class World {
 public:
  World(std::uint64_t seed, WorldCounts& counts)
      : counts_(counts),
        random_(seed),
        sizes_(random_),
        files_(sizes_, random_),
        classes_(slots_of(sizes_, files_, random_)),
        memory_(memory_bytes()),
        states_(states()),
        table_(0, classes_, states_, offsets_),
        cache_(table_, sizes_.layers, sizes_.keys_of_layer,
               [this](std::int64_t layer) { return scores(layer); }),
        scheduler_(static_cast<int>(random_.between(1, 8)), static_cast<int>(random_.between(1, 4)),
                   kBlockBytes * random_.between(1, 3), copies_of(sizes_), now_of_world),
        disks_(sizes_, files_, scheduler_, random_, counts_),
        reads_(sizes_, files_, scheduler_, disks_, random_, counts_, memory_.data()),
        loader_(cache_, reads_, sizes_.slices),
        use_(sizes_.layers, sizes_.experts, sizes_.top_k),
        next_use_(use_.no_use(), use_.wait(), sizes_.layers, sizes_.experts, 0, 0),
        scores_(static_cast<std::size_t>(sizes_.keys)),
        sessions_(static_cast<std::size_t>(sizes_.sessions)) {
    simulated_now = {};
    disks_.may_write = [this](const Segment& segment) { return owns(segment); };
    cache_.share(sizes_.shared);
    for (Session& session : sessions_) session.taste = random_.between(0, sizes_.experts - 1);
  }

  std::string told() const { return sizes_.told(); }

  // One session's next pass through all layers, with what happens between two visits.
  void step() {
    Session& session = sessions_[static_cast<std::size_t>(random_.between(0, sizes_.sessions - 1))];
    session.num_tokens = random_.one_in(4) ? random_.between(2, 12) : 1;
    if (random_.one_in(10)) use_.restart();
    Routing routing = route(session);
    for (std::int64_t layer = 0; layer < sizes_.layers; ++layer) {
      between_visits();
      const Routing next = route(session);
      const bool ended = guarded([&] { visit(layer, session.num_tokens, routing, next); });
      CHECK(cache_.pinned().empty());
      check();
      if (!ended) return;
      routing = next;
    }
  }

 private:
  struct Routing {
    std::vector<std::int64_t> ids, experts, counts;  // [num_tokens, top_k]; of the experts among them
  };

  // Carries out what may be interrupted; whether it was not.
  template <typename Action>
  bool guarded(const Action& action) {
    reads_.may_interrupt = true;
    try {
      action();
      reads_.may_interrupt = false;
      return true;
    } catch (const Interrupt&) {
      reads_.may_interrupt = false;
      return false;
    }
  }

  Routing route(const Session& session) {
    Routing routing;
    std::vector<std::int64_t> counts(static_cast<std::size_t>(sizes_.experts), 0);
    for (std::int64_t token = 0; token < session.num_tokens; ++token) {
      std::vector<bool> used(static_cast<std::size_t>(sizes_.experts), false);
      for (std::int64_t each = 0; each < sizes_.top_k; ++each) {
        std::int64_t id;
        do {
          const std::int64_t away =
              random_.one_in(3) ? random_.between(0, sizes_.experts - 1) : random_.between(0, sizes_.top_k);
          id = (session.taste + away) % sizes_.experts;
        } while (used[static_cast<std::size_t>(id)]);
        used[static_cast<std::size_t>(id)] = true;
        routing.ids.push_back(id);
        ++counts[static_cast<std::size_t>(id)];
      }
    }
    for (std::int64_t expert = 0; expert < sizes_.experts; ++expert) {
      if (counts[static_cast<std::size_t>(expert)] == 0) continue;
      routing.experts.push_back(expert);
      routing.counts.push_back(counts[static_cast<std::size_t>(expert)]);
    }
    return routing;
  }

  void visit(std::int64_t layer, std::int64_t num_tokens, const Routing& routing, const Routing& next) {
    use_.observe(layer, routing.ids.data(), num_tokens);
    next_use_.observed(num_tokens);
    Keys wanted, handed_out;
    for (const std::int64_t expert : routing.experts)
      for (std::int64_t slice = 0; slice < sizes_.slices; ++slice)
        if (const std::int64_t key = key_of(layer, expert, slice); table_.state(key) != moeinf::kNoExpert)
          wanted.push_back(key);
    moeinf::Needed needed{layer, num_tokens, routing.experts, routing.counts};
    if (sizes_.shared) {  // as the experts of other machines are left out before
      needed.experts.clear();
      needed.counts.clear();
      for (std::size_t i = 0; i < routing.experts.size(); ++i) {
        if (table_.state(key_of(layer, routing.experts[i], 0)) == moeinf::kNoExpert) continue;
        needed.experts.push_back(routing.experts[i]);
        needed.counts.push_back(routing.counts[i]);
      }
    }
    const std::int64_t before = cache_.counts().hits + cache_.counts().misses;
    std::int64_t activations = 0;
    for (const std::int64_t count : needed.counts) activations += count;
    ++counts_.visits;
    Visit visit(cache_, loader_, needed);
    const std::unique_ptr<Visit, void (*)(Visit*)> closed(&visit, [](Visit* each) { each->close(); });
    CHECK(cache_.counts().hits + cache_.counts().misses == before + activations);
    if (num_tokens > 8 && layer + 1 < sizes_.layers) {
      visit.read_ahead(absent_or_not(layer + 1, next));
    } else {
      prefetch(layer, next);
    }
    const bool gives_up = random_.one_in(40);
    bool wrong = false;
    while (true) {
      ++counts_.operations;
      const Keys batch = visit.next_batch();
      check();
      for (const std::int64_t key : batch) {
        CHECK(table_.state(key) == moeinf::kResident && cache_.pinned().has(key));
        wrong = wrong || !files_.is_right(key, memory_.data() + table_.offset(key));
        handed_out.push_back(key);
      }
      // The time that it takes to compute them.
      for (std::int64_t i = random_.between(0, 3); i > 0 && !disks_.idles(); --i) disks_.go_on();
      for (const std::int64_t key : batch) CHECK(table_.state(key) == moeinf::kResident);
      if (gives_up && random_.one_in(2)) {
        ++counts_.given_up;
        return;
      }
      if (!batch.empty()) continue;
      if (visit.has_ended()) break;
      if (visit.wait()) {
        ++counts_.failed;
        return;
      }
      check();
    }
    std::sort(handed_out.begin(), handed_out.end());
    CHECK(handed_out == wanted);  // each of them once: the answer is that of a world without a cache
    CHECK(!wrong);
  }

  Keys absent_or_not(std::int64_t layer, const Routing& next) {
    Keys keys;
    for (const std::int64_t expert : next.experts)
      for (std::int64_t slice = 0; slice < sizes_.slices; ++slice)
        if (const std::int64_t key = key_of(layer, expert, slice); table_.state(key) != moeinf::kNoExpert)
          keys.push_back(key);
    return keys;
  }

  // As the prefetcher does behind a routing: what is queued has new priorities, and more is queued.
  void prefetch(std::int64_t layer, const Routing& next) {
    const std::int64_t ahead = sizes_.layers - layer - 1;
    if (ahead == 0) return;
    std::vector<double> likelihood(static_cast<std::size_t>(ahead * sizes_.keys_of_layer));
    for (double& each : likelihood) each = random_.one_in(3) ? random_.share() : 0;
    for (const std::int64_t expert : next.experts)
      for (std::int64_t slice = 0; slice < sizes_.slices; ++slice)
        likelihood[static_cast<std::size_t>(expert * sizes_.slices + slice)] = 0.5 + random_.share() / 2;
    Keys queued;
    std::vector<double> priorities;
    for (const std::int64_t key : cache_.reserved().members()) {
      if (table_.state(key) != moeinf::kLoading) continue;
      queued.push_back(key);
      priorities.push_back(random_.share());
    }
    if (!queued.empty() && random_.one_in(2)) loader_.reprioritise(queued, priorities);
    const std::int64_t room =
        (table_.num_slots() / static_cast<std::int64_t>(sizes_.classes) - sizes_.top_k * sizes_.slices) / 2 -
        static_cast<std::int64_t>(cache_.reserved().size());
    if (room <= 0) return;
    const moeinf::RankedPrefetches ranked = moeinf::rank_prefetches(
        likelihood.data(), ahead, sizes_.keys_of_layer, sizes_.layers, 0.01, table_.states(), moeinf::kAbsent,
        (layer + 1) * sizes_.keys_of_layer, 0.2, static_cast<std::size_t>(random_.between(0, room)));
    if (!ranked.keys.empty()) loader_.prefetch(ranked.keys, ranked.priorities);
  }

  void between_visits() {
    guarded([&] {
      if (random_.one_in(3)) loader_.poll();
      if (random_.one_in(20)) loader_.cancel(table_.loading());
      if (random_.one_in(30)) resize();
      if (random_.one_in(40)) cache_.let_go();
    });
    for (std::int64_t i = random_.between(0, 4); i > 0 && !disks_.idles(); --i) disks_.go_on();
    check();
  }

  // Other programs need memory, or have given it back.
  void resize() {
    const auto most = static_cast<std::int64_t>(classes_.of_slots.size());
    const std::int64_t num_slots = random_.between(static_cast<std::int64_t>(sizes_.classes), most);
    std::int64_t end = 0;
    for (std::int64_t slot = 0; slot < num_slots; ++slot)
      end += classes_.bytes[classes_.of_slots[static_cast<std::size_t>(slot)]];
    const auto is_beyond = [&](std::int64_t key) { return table_.offset(key) >= end; };
    Keys loading = table_.loading();
    loading.erase(std::remove_if(loading.begin(), loading.end(), [&](auto key) { return !is_beyond(key); }),
                  loading.end());
    loader_.cancel(loading);
    while (true) {
      loading = table_.loading();
      loading.erase(std::remove_if(loading.begin(), loading.end(), [&](auto key) { return !is_beyond(key); }),
                    loading.end());
      if (loading.empty()) break;
      loader_.wait(loading);
    }
    Keys leaving;
    for (std::int64_t key = 0; key < sizes_.keys; ++key)
      if (table_.state(key) == moeinf::kResident && is_beyond(key)) leaving.push_back(key);
    cache_.release(leaving);
    table_.limit(num_slots);
    ++counts_.resizes;
    ++counts_.operations;
  }

  // What has to be so after everything that happens.
  void check() {
    ++counts_.operations;
    scheduler_.check_integrity();
    disks_.check_awake();
    CHECK(scheduler_.bytes_read() == disks_.num_bytes);
    std::int64_t of_disks = 0;
    for (int disk = 0; disk < sizes_.disks; ++disk) {
      CHECK(scheduler_.bytes_read_of(disk) == disks_.bytes_of[static_cast<std::size_t>(disk)]);
      of_disks += scheduler_.bytes_read_of(disk);
    }
    CHECK(of_disks == scheduler_.bytes_read());
    const double now_s = std::chrono::duration<double>(simulated_now.time_since_epoch()).count();
    CHECK(scheduler_.busy_seconds() <= now_s + 1e-9);
    check_slots();
    const moeinf::CacheCounts& counts = cache_.counts();
    CHECK(counts.late_hits <= counts.misses);
    CHECK(counts.prefetches == counts.prefetches_used + counts.prefetches_wasted +
                                   static_cast<std::int64_t>(cache_.unused().size()));
    CHECK(counts.prefetch_bytes >= 0 && counts.demand_bytes >= 0);
  }

  void check_slots() {
    std::vector<std::int64_t> of_class(sizes_.classes, 0);
    owners_.clear();
    std::int64_t resident = 0, loading = 0;
    for (std::int64_t key = 0; key < sizes_.keys; ++key) {
      const std::uint8_t state = table_.state(key);
      const bool held = state == moeinf::kLoading || state == moeinf::kResident;
      CHECK(held == (table_.offset(key) != SlotTable::kNoSlot));
      CHECK(held || (!cache_.pinned().has(key) && !cache_.reserved().has(key) && !cache_.unused().has(key)));
      if (!held) continue;
      resident += state == moeinf::kResident;
      loading += state == moeinf::kLoading;
      owners_.push_back(table_.offset(key));
      ++of_class[table_.class_of(key)];
    }
    CHECK(resident == table_.num_resident() && loading == table_.num_loading());
    for (const std::int64_t offset : table_.free_offsets()) owners_.push_back(offset);
    std::sort(owners_.begin(), owners_.end());
    CHECK(static_cast<std::int64_t>(owners_.size()) == table_.num_slots());
    std::int64_t begin = 0;
    for (std::size_t slot = 0; slot < owners_.size(); ++slot) {
      CHECK(owners_[slot] == begin);  // each slot has one owner, or none
      begin += classes_.bytes[classes_.of_slots[slot]];
    }
    for (std::size_t each = 0; each < of_class.size(); ++each)
      CHECK(of_class[each] + table_.free_of(each) == table_.slots_of(each));
  }

  // Whether an expert's read writes into the slot that it has.
  bool owns(const Segment& segment) const {
    if (table_.state(segment.key) != moeinf::kLoading) return false;
    const unsigned char* slot = memory_.data() + table_.offset(segment.key);
    return segment.destination >= slot &&
           segment.destination + segment.num_bytes <= slot + table_.slot_bytes(segment.key);
  }

  std::int64_t key_of(std::int64_t layer, std::int64_t expert, std::int64_t slice) const {
    return layer * sizes_.keys_of_layer + expert * sizes_.slices + slice;
  }

  const double* scores(std::int64_t layer) {
    const double* of_experts = next_use_.keep_scores(layer);
    if (sizes_.slices == 1) return of_experts;
    for (std::int64_t key = 0; key < sizes_.keys; ++key)
      scores_[static_cast<std::size_t>(key)] = of_experts[key / sizes_.slices];
    return scores_.data();
  }

  std::size_t memory_bytes() const {
    std::int64_t bytes = 0;
    for (const std::uint8_t each : classes_.of_slots) bytes += classes_.bytes[each];
    return static_cast<std::size_t>(bytes);
  }

  std::vector<std::uint8_t> states() {
    std::vector<std::uint8_t> states(static_cast<std::size_t>(sizes_.keys), moeinf::kAbsent);
    offsets_.resize(states.size());
    for (std::int64_t expert = 0; sizes_.shared && expert < sizes_.keys / sizes_.slices; ++expert) {
      if (!random_.one_in(3)) continue;
      for (std::int64_t slice = 0; slice < sizes_.slices; ++slice)
        states[static_cast<std::size_t>(expert * sizes_.slices + slice)] = moeinf::kNoExpert;
    }
    return states;
  }

  WorldCounts& counts_;
  Random random_;
  Sizes sizes_;
  Files files_;
  moeinf::SlotClasses classes_;
  std::vector<unsigned char> memory_;
  std::vector<std::int64_t> offsets_;
  std::vector<std::uint8_t> states_;
  SlotTable table_;
  moeinf::ExpertCache cache_;
  Scheduler scheduler_;
  Disks disks_;
  SimulatedReads reads_;
  moeinf::Loader loader_;
  moeinf::UseModel use_;
  moeinf::NextUseScores next_use_;
  std::vector<double> scores_;
  std::vector<Session> sessions_;
  std::vector<std::int64_t> owners_;
};

}  // namespace

void WorldCounts::add(const WorldCounts& other) {
  operations += other.operations;
  visits += other.visits;
  given_up += other.given_up;
  failed += other.failed;
  faults += other.faults;
  interrupts += other.interrupts;
  resizes += other.resizes;
}

WorldCounts play_world(std::uint64_t seed, std::int64_t num_operations) {
  WorldCounts counts;
  World world(seed, counts);
  try {
    while (counts.operations < num_operations) world.step();
  } catch (const std::exception& error) {
    throw std::runtime_error("behind operation " + std::to_string(counts.operations) + " of " + world.told() +
                             ": " + error.what());
  }
  return counts;
}
