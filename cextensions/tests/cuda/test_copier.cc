// The copier against a driver whose copies come late: any order that it did not ask for shows wrong bytes.
#include <algorithm>
#include <cstring>
#include <memory>
#include <numeric>
#include <random>
#include <thread>
#include <vector>

#include "check.h"
#include "fake_cuda.h"
#include "forks.h"
#include "moeinf/cuda/copier.h"
#include "moeinf/errors.h"
#include "moeinf/io/arena.h"

using moeinf::Arena;
using moeinf::cuda::Copier;
using moeinf::cuda::CudaError;
using moeinf::cuda::Driver;
using moeinf::cuda::Stream;

namespace {

constexpr std::int64_t kExpert = 12288;
constexpr std::int64_t kRing = 65536;  // 4 pieces of 16 KiB
constexpr std::int64_t kMiB = std::int64_t{1} << 20;
constexpr std::int64_t kPiece = 256 * kMiB / kExpert * kExpert;  // that is registered at once
using Bytes = std::vector<unsigned char>;

Bytes random_bytes(std::int64_t num_bytes, unsigned seed = 1) {
  std::mt19937 random(seed);
  Bytes bytes(static_cast<std::size_t>(num_bytes));
  for (unsigned char& byte : bytes) byte = static_cast<unsigned char>(random());
  return bytes;
}

std::int64_t address_of(const void* memory) { return reinterpret_cast<std::int64_t>(memory); }

// A driver with its knobs in their first position, and nothing left in it afterwards.
struct Machine {
  explicit Machine(int version = 13000) {
    fake_reset();
    fake_set_version(version);
    driver = std::make_shared<const Driver>(MOEINF_FAKE_CUDA);
  }
  ~Machine() { fake_reset(); }
  Stream stream() const {
    void* handle = nullptr;
    fake_create_stream(&handle);
    return static_cast<Stream>(handle);
  }
  std::shared_ptr<const Driver> driver;
};

// Of blocks in so much memory; the last may be shorter.
std::vector<std::int64_t> ends_of(std::int64_t num_bytes, std::int64_t block_bytes) {
  std::vector<std::int64_t> ends;
  for (std::int64_t end = block_bytes; end < num_bytes; end += std::max<std::int64_t>(block_bytes, 1))
    ends.push_back(end);
  ends.push_back(num_bytes);
  return ends;
}

std::int64_t register_all(Copier& copier, void* memory, std::int64_t num_bytes,
                          std::int64_t block_bytes = kExpert) {
  return copier.register_memory(static_cast<unsigned char*>(memory), ends_of(num_bytes, block_bytes),
                                [](std::int64_t) {});
}

std::int64_t copy_each(Copier& copier, const std::int64_t* sources, const std::int64_t* destinations,
                       std::size_t count, std::int64_t num_bytes, Stream compute = nullptr) {
  const std::vector<std::int64_t> of_each(count, num_bytes);
  return copier.copy(sources, destinations, of_each.data(), count, compute);
}

// Experts in host memory, and slots for as many on the device.
struct Experts {
  explicit Experts(int count, unsigned seed = 1)
      : host(static_cast<std::size_t>(count * kExpert)), device(host.num_bytes()) {
    const Bytes bytes = random_bytes(count * kExpert, seed);
    std::memcpy(host.data(), bytes.data(), bytes.size());
    for (int i = 0; i < count; ++i) {
      sources.push_back(address_of(host.data()) + i * kExpert);
      destinations.push_back(address_of(device.data()) + i * kExpert);
    }
  }
  std::int64_t num_bytes() const { return static_cast<std::int64_t>(host.num_bytes()); }
  std::int64_t copy(Copier& copier, Stream compute = nullptr) const {
    return copy_each(copier, sources.data(), destinations.data(), sources.size(), kExpert, compute);
  }
  bool arrived() const { return std::memcmp(host.data(), device.data(), host.num_bytes()) == 0; }

  Arena host, device;
  std::vector<std::int64_t> sources, destinations;
};

}  // namespace

TEST(registered_experts_are_copied_in_one_submission) {
  const Machine machine;
  const Experts experts(5);
  Copier copier(machine.driver, 0, kRing);
  CHECK(copier.batched());
  CHECK(register_all(copier, experts.host.data(), experts.num_bytes()) == experts.num_bytes());
  copier.wait(experts.copy(copier));
  CHECK(experts.arrived());
  CHECK(fake_num_batches() == 1 && fake_num_copies() == 5);
}

TEST(a_driver_before_12_8_copies_one_by_one) {
  const Machine machine(12070);
  const Experts experts(5);
  Copier copier(machine.driver, 0, kRing);
  CHECK(!copier.batched());
  register_all(copier, experts.host.data(), experts.num_bytes());
  copier.wait(experts.copy(copier));
  CHECK(experts.arrived());
  CHECK(fake_num_batches() == 0 && fake_num_copies() == 5);
}

TEST(a_driver_that_cannot_batch_is_asked_once) {
  const Machine machine;
  for (const int refusal : {moeinf::cuda::kNotSupported, moeinf::cuda::kInvalidValue}) {
    const Experts experts(3);
    Copier copier(machine.driver, 0, kRing);
    register_all(copier, experts.host.data(), experts.num_bytes());
    fake_fail("cuMemcpyBatchAsync", refusal, 0);
    copier.wait(experts.copy(copier));
    CHECK(experts.arrived());
    CHECK(!copier.batched());
    fake_fail("cuMemcpyBatchAsync", 0, 0);
    copier.wait(experts.copy(copier));
    CHECK(fake_num_batches() == 0);
  }
}

TEST(a_copy_waits_for_what_was_computing_before) {
  const Machine machine;
  for (const Stream compute : {static_cast<Stream>(nullptr), machine.stream()}) {
    const Experts experts(2);
    const Bytes old = random_bytes(experts.num_bytes(), 2);
    std::memcpy(experts.device.data(), old.data(), old.size());
    Bytes seen(old.size());
    Copier copier(machine.driver, 0, kRing);
    register_all(copier, experts.host.data(), experts.num_bytes());
    fake_hold_compute(1);
    fake_compute(compute, seen.data(), experts.device.data(), seen.size());  // still reads the slots
    const std::int64_t ticket = experts.copy(copier, compute);
    fake_settle();
    CHECK(!copier.done(ticket));
    CHECK(std::equal(old.begin(), old.end(), experts.device.data()));
    fake_hold_compute(0);
    copier.wait(ticket);
    CHECK(seen == old);
    CHECK(experts.arrived());
  }
}

TEST(computing_waits_for_the_ticket_it_was_told) {
  const Machine machine;
  const Experts experts(2);
  const Stream compute = machine.stream();
  Bytes seen(static_cast<std::size_t>(experts.num_bytes()));
  Copier copier(machine.driver, 0, kRing);
  register_all(copier, experts.host.data(), experts.num_bytes());
  fake_hold_copies(1);
  const std::int64_t ticket = experts.copy(copier, compute);
  copier.make_wait(compute, ticket);
  fake_compute(compute, seen.data(), experts.device.data(), seen.size());
  fake_settle();
  CHECK(!copier.done(ticket));
  fake_hold_copies(0);
  fake_synchronize(compute);
  CHECK(std::equal(seen.begin(), seen.end(), experts.host.data()));
  copier.make_wait(compute, ticket);  // long done: nothing to wait for
  CHECK(copier.done(ticket));
}

TEST(tickets_are_done_in_their_order) {
  const Machine machine;
  const Experts experts(1);
  Copier copier(machine.driver, 0, kRing);
  register_all(copier, experts.host.data(), experts.num_bytes());
  CHECK(copier.done(0));  // before the first
  fake_hold_copies(1);
  const std::int64_t first = experts.copy(copier);
  const std::int64_t second = experts.copy(copier);
  CHECK(second == first + 1);
  CHECK(copier.copy(nullptr, nullptr, nullptr, 0, nullptr) == second);  // nothing to copy: no new one
  CHECK(!copier.done(first) && !copier.done(second));
  fake_hold_copies(2);  // until they are waited for
  copier.wait(second);
  CHECK(copier.done(first) && copier.done(second));
  CHECK(throws<std::invalid_argument>([&] { copier.done(second + 1); }));
  CHECK(throws<std::invalid_argument>([&] { copier.wait(-1); }));
  CHECK(throws<std::invalid_argument>([&] { copier.make_wait(nullptr, second + 1); }));
}

TEST(memory_that_is_not_registered_is_the_callers_again_at_once) {
  const Machine machine;
  const Experts experts(3);
  const Bytes bytes(experts.host.data(), experts.host.data() + experts.num_bytes());
  Copier copier(machine.driver, 0, kRing);
  fake_hold_copies(1);
  const std::int64_t ticket = experts.copy(copier);
  std::memset(experts.host.data(), 0, bytes.size());
  CHECK(!copier.done(ticket));
  fake_hold_copies(0);
  copier.wait(ticket);
  CHECK(std::equal(bytes.begin(), bytes.end(), experts.device.data()));
}

TEST(a_full_ring_waits_for_its_oldest_piece) {
  const Machine machine;
  const Experts experts(40);  // seven times the ring
  Copier copier(machine.driver, 0, kRing);
  fake_hold_copies(1);
  std::thread caller([&] { copier.wait(experts.copy(copier)); });
  fake_wait_until_waiting();
  CHECK(fake_num_copies() < 40);
  fake_hold_copies(0);
  caller.join();
  CHECK(experts.arrived());
}

TEST(an_expert_larger_than_the_ring_goes_through_it_in_pieces) {
  const Machine machine;
  const Bytes host = random_bytes(3 * kRing + 100);
  Bytes device(host.size());
  Copier copier(machine.driver, 0, kRing);
  const std::int64_t source = address_of(host.data()), destination = address_of(device.data());
  copier.wait(copy_each(copier, &source, &destination, 1, static_cast<std::int64_t>(host.size())));
  CHECK(device == host);
}

TEST(a_system_that_refuses_gets_the_last_piece_back_and_the_rest_is_copied_all_the_same) {
  const Machine machine;
  Arena host(static_cast<std::size_t>(1024 * kMiB));
  Copier copier(machine.driver, 0, kRing);
  fake_set_pin_limit(kRing + 800 * kMiB);
  const int before = fake_num_live();
  CHECK(register_all(copier, host.data(), 1024 * kMiB) == 2 * kPiece);  // of three
  CHECK(fake_num_live() == before + 2);
  Copier other(machine.driver, 0, 200 * kMiB);  // finds room now
  // Across a border between two registrations, and across the end of what is pinned.
  for (const std::int64_t border : {kPiece, 2 * kPiece}) {
    const Bytes expert = random_bytes(2 * kExpert);
    Bytes device(expert.size());
    unsigned char* const place = host.data() + border - kExpert;
    std::memcpy(place, expert.data(), expert.size());
    const std::int64_t source = address_of(place), destination = address_of(device.data());
    copier.wait(copy_each(copier, &source, &destination, 1, 2 * kExpert));
    CHECK(device == expert);
  }
}

TEST(a_system_that_pins_one_piece_keeps_none_of_it) {
  const Machine machine;
  const Arena host(static_cast<std::size_t>(512 * kMiB));
  Copier copier(machine.driver, 0, kRing);
  const int before = fake_num_live();
  for (const std::int64_t limit : {kRing, kRing + 300 * kMiB}) {
    fake_set_pin_limit(limit);
    CHECK(register_all(copier, host.data(), 512 * kMiB) == 0);
    CHECK(fake_num_live() == before);
  }
}

TEST(blocks_are_registered_from_the_start_of_a_page) {
  const Machine machine;
  const Arena host(static_cast<std::size_t>(kMiB));
  Copier copier(machine.driver, 0, kRing);
  CHECK(throws<std::invalid_argument>([&] { register_all(copier, host.data() + 100, 4096); }));
  CHECK(throws<std::invalid_argument>([&] { register_all(copier, host.data(), 4096, 0); }));
}

TEST(a_lost_device_is_no_refusal) {
  const Machine machine;
  const Arena host(static_cast<std::size_t>(512 * kMiB));
  {
    Copier copier(machine.driver, 0, kRing);
    fake_fail("cuMemHostRegister", 700, 1);
    CHECK(throws<CudaError>([&] { register_all(copier, host.data(), 512 * kMiB); }));
    fake_fail("cuMemHostGetDevicePointer", 1, 0);
    fake_fail("cuMemHostRegister", 0, 0);
    CHECK(throws<CudaError>([&] { register_all(copier, host.data() + kPiece, 4096); }));
  }
  CHECK(fake_num_live() == 0);  // the piece that was pinned is given back
}

TEST(registering_can_be_interrupted_between_pieces) {
  const Machine machine;
  const Arena host(static_cast<std::size_t>(512 * kMiB));
  {
    Copier copier(machine.driver, 0, kRing);
    CHECK(throws<std::runtime_error>([&] {
      copier.register_memory(host.data(), ends_of(512 * kMiB, kExpert),
                             [](std::int64_t) { throw std::runtime_error("stop"); });
    }));
    const auto address = reinterpret_cast<std::uintptr_t>(host.data());
    CHECK(copier.device_address(address, kPiece) == address);
    CHECK(throws<std::invalid_argument>([&] { copier.device_address(address + kPiece, 1); }));
    CHECK(throws<std::invalid_argument>([&] { register_all(copier, host.data() + 4096, 4096); }));
  }
  CHECK(fake_num_live() == 0);
}

TEST(a_device_that_sees_registered_memory_elsewhere_is_given_its_own_addresses) {
  const Machine machine;
  Arena host(static_cast<std::size_t>(512 * kMiB));
  Copier copier(machine.driver, 0, kRing);
  fake_set_alias(1);
  const std::int64_t num_bytes = 512 * kMiB / kExpert * kExpert;
  CHECK(register_all(copier, host.data(), num_bytes) == num_bytes);
  const auto address = reinterpret_cast<std::uintptr_t>(host.data());
  CHECK(copier.device_address(address + 8, 4096) == copier.device_address(address, 1) + 8);
  CHECK(copier.device_address(address, 1) != address);
  for (std::int64_t block = 0; block < num_bytes; block += kExpert) {  // none lies across two pieces
    CHECK(copier.device_address(address + static_cast<std::uintptr_t>(block), kExpert) != 0);
  }
  CHECK(throws<std::invalid_argument>(
      [&] { copier.device_address(address + static_cast<std::uintptr_t>(kPiece) - 4096, 4097); }));

  const Bytes expert = random_bytes(2 * kExpert);
  Bytes device(expert.size());
  // The last expert of one piece, and the first of the next.
  unsigned char* const place = host.data() + kPiece - kExpert;
  std::memcpy(place, expert.data(), expert.size());
  const std::int64_t sources[] = {address_of(place), address_of(place) + kExpert};
  const std::int64_t destinations[] = {address_of(device.data()), address_of(device.data()) + kExpert};
  copier.wait(copy_each(copier, sources, destinations, 2, kExpert));
  CHECK(device == expert);
  CHECK(fake_num_batches() == 1);
}

TEST(busy_time_is_that_of_the_copies_alone) {
  const Machine machine;
  const Experts experts(4);
  Copier copier(machine.driver, 0, kRing);
  register_all(copier, experts.host.data(), experts.num_bytes());
  CHECK(copier.bytes_copied() == 0 && copier.busy_seconds() == 0);
  for (int round = 1; round <= 3; ++round) {
    const std::int64_t ticket = experts.copy(copier);
    experts.copy(copier);
    copier.wait(ticket + 1);
    fake_advance(5000);  // idle
    const std::int64_t bytes = round * 2 * experts.num_bytes();
    CHECK(copier.bytes_copied() == bytes);
    CHECK(std::abs(copier.busy_seconds() - static_cast<double>(bytes) / 1024 / 1000) < 1e-6);
  }
}

TEST(a_refused_copy_names_the_error_and_leaves_nothing_under_way) {
  const Machine machine(12040);
  Copier copier(machine.driver, 0, kRing);
  Experts experts(3);
  register_all(copier, experts.host.data(), experts.num_bytes());
  fake_hold_copies(2);  // as late as can be
  fake_fail("cuMemcpyHtoDAsync", 700, 2);
  try {
    experts.copy(copier);
    CHECK(false);
  } catch (const CudaError& error) {
    CHECK(error.code == 700 && error.name == "CUDA_ERROR_ILLEGAL_ADDRESS");
    CHECK(std::string(error.what()) == "cuMemcpyHtoDAsync: as the fake says (CUDA_ERROR_ILLEGAL_ADDRESS)");
  }
  std::memset(experts.device.data(), 7, experts.device.num_bytes());
  fake_hold_copies(0);
  fake_settle();
  const auto* first = experts.device.data();
  CHECK(std::all_of(first, first + experts.num_bytes(), [](unsigned char byte) { return byte == 7; }));
  fake_fail("cuMemcpyHtoDAsync", 0, 0);
  const std::int64_t ticket = experts.copy(copier);
  CHECK(ticket == 1);
  copier.wait(ticket);
  CHECK(experts.arrived());
  CHECK(copier.bytes_copied() == experts.num_bytes());
}

TEST(an_error_that_the_driver_has_no_name_for_is_told_by_its_number) {
  const Machine machine;
  const Experts experts(1);
  Copier copier(machine.driver, 0, kRing);
  fake_fail("cuEventRecord", 12345, 0);
  try {
    experts.copy(copier);
    CHECK(false);
  } catch (const CudaError& error) {
    CHECK(error.code == 12345 && error.name == "CUDA_ERROR_12345");
  }
}

TEST(closing_waits_for_the_copies_and_gives_everything_back) {
  const Machine machine;
  const Experts experts(4);
  Copier copier(machine.driver, 1, kRing);
  register_all(copier, experts.host.data(), experts.num_bytes() - kExpert);  // the last goes through the ring
  const std::int64_t ticket = experts.copy(copier);
  copier.close();
  CHECK(experts.arrived());
  CHECK(fake_num_live() == 0);
  CHECK(copier.bytes_copied() == experts.num_bytes());
  copier.close();
  CHECK(throws<std::invalid_argument>([&] { copier.done(ticket); }));
  CHECK(throws<std::invalid_argument>([&] { experts.copy(copier); }));
  CHECK(throws<std::invalid_argument>([&] { register_all(copier, experts.host.data(), 4096); }));
}

TEST(closing_gives_back_what_it_can_and_tells_the_first_failure) {
  const Machine machine;
  const Experts experts(1);
  for (const char* function : {"cuStreamSynchronize", "cuEventQuery", "cuEventElapsedTime"}) {
    Copier copier(machine.driver, 0, kRing);
    register_all(copier, experts.host.data(), experts.num_bytes());
    experts.copy(copier);
    fake_fail(function, 700, 0);
    CHECK(throws<CudaError>([&] { copier.close(); }));
    CHECK(fake_num_live() == 0);
    copier.close();
    fake_fail(function, 0, 0);
  }
}

TEST(a_copier_that_cannot_be_made_leaves_nothing_behind) {
  const Machine machine;
  for (const char* function :
       {"cuDevicePrimaryCtxRetain", "cuStreamCreate", "cuEventCreate", "cuMemHostAlloc"}) {
    fake_fail(function, 2, 0);
    CHECK(throws<CudaError>([&] { Copier(machine.driver, 0, kRing); }));
    fake_fail(function, 0, 0);
    CHECK(fake_num_live() == 0);
  }
  CHECK(throws<CudaError>([&] { Copier(machine.driver, 2, kRing); }));  // there are two devices
  CHECK(throws<std::invalid_argument>([&] { Copier(machine.driver, 0, 16383); }));
  CHECK(fake_num_live() == 0);
}

TEST(random_copies_from_pinned_and_other_memory_bring_the_right_bytes) {
  const Machine machine;
  std::mt19937 random(7);
  const Experts experts(24, 3);
  const Stream streams[] = {nullptr, machine.stream(), machine.stream()};
  Copier copier(machine.driver, 0, kRing);
  register_all(copier, experts.host.data() + 3 * kExpert, 9 * kExpert - 1000);
  register_all(copier, experts.host.data() + 15 * kExpert, 4 * kExpert + 1);
  std::vector<std::int64_t> order(24);
  std::iota(order.begin(), order.end(), 0);
  for (int round = 0; round < 60; ++round) {
    const Stream compute = streams[random() % 3];
    std::shuffle(order.begin(), order.end(), random);
    const std::size_t count = 1 + random() % 8;
    std::vector<std::int64_t> sources, destinations, sizes;
    Bytes expected;
    for (std::size_t i = 0; i < count; ++i) {
      sources.push_back(experts.sources[static_cast<std::size_t>(order[i])]);
      destinations.push_back(address_of(experts.device.data()) + static_cast<std::int64_t>(expected.size()));
      sizes.push_back(1 + static_cast<std::int64_t>(random() % kExpert));
      const auto* bytes = reinterpret_cast<const unsigned char*>(sources.back());
      expected.insert(expected.end(), bytes, bytes + sizes.back());
    }
    Bytes seen(expected.size());
    const std::int64_t ticket =
        copier.copy(sources.data(), destinations.data(), sizes.data(), count, compute);
    copier.make_wait(compute, ticket);
    fake_compute(compute, seen.data(), experts.device.data(), seen.size());
    fake_synchronize(compute);
    CHECK(seen == expected);
  }
}

TEST(a_driver_tells_what_devices_it_has) {
  const Machine machine(12040);
  const Driver& driver = *machine.driver;
  CHECK(driver.version() == 12040 && driver.device_count() == 2);
  CHECK(driver.name(0) == "Fake GPU" && driver.name(1) == "Other fake GPU");
  CHECK(driver.capability(1) == std::make_pair(9, 6));
  CHECK(driver.total_bytes(0) == std::size_t{8} << 30);
  CHECK(driver.has_display(0) && !driver.has_display(1));
  CHECK(driver.uuid(0) == "GPU-f0e0d0c0-b0a0-9080-7060-504030201000");
  CHECK(driver.memory(0).first == std::size_t{7} << 30 && driver.memory(0).second == std::size_t{8} << 30);
  CHECK(fake_num_live() == 0);
  fake_fail("cuMemGetInfo", 2, 0);
  CHECK(throws<CudaError>([&] { driver.memory(0); }));
  CHECK(fake_num_live() == 0);
  CHECK(throws<CudaError>([&] { driver.name(2); }));
}

TEST(a_driver_that_is_missing_or_does_not_start_says_so) {
  const Machine machine;
  CHECK(throws<moeinf::SystemFailure>([] { Driver("libnosuchcuda.so.1"); }));
  CHECK(throws<moeinf::SystemFailure>([] { Driver("libc.so.6"); }));  // no function of the driver in it
  fake_fail("cuInit", 100, 0);
  try {
    Driver driver(MOEINF_FAKE_CUDA);
    CHECK(false);
  } catch (const CudaError& error) {
    CHECK(error.name == "CUDA_ERROR_NO_DEVICE");
  }
}

TEST(a_copier_is_refused_and_let_go_of_in_a_forked_child) {
  const Machine machine;
  const Experts experts(3);
  auto copier = std::make_unique<Copier>(machine.driver, 0, kRing);
  const std::int64_t ticket = experts.copy(*copier);
  CHECK(holds_in_child([&] {
    const bool was_refused = refused_after_fork([&] { experts.copy(*copier); }) &&
                             refused_after_fork([&] { copier->wait(ticket); }) &&
                             refused_after_fork([&] { copier->bytes_copied(); });
    copier->close();
    copier.reset();
    return was_refused;
  }));
  copier->wait(ticket);
  CHECK(experts.arrived());
}
