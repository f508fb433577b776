// The NVIDIA driver's library, loaded at run time: neither its headers nor a card is needed to build or to
// import.
//
// Declarations follow cuda.h of CUDA 13.1 and the CUDA Driver API reference; tests compare them with that
// header where a copy of it lies about. Functions that changed are taken by the name of the variant meant
// here ("_v2"), which a driver keeps for good: cuda.h only maps the plain name to the newest.
#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <utility>

namespace moeinf::cuda {

// Opaque handles, and CUresult and CUdevice, which are as wide as int.
using Result = int;
using Device = int;
using Context = struct ContextHandle*;
using Stream = struct StreamHandle*;
using Event = struct EventHandle*;
using DeviceAddress = unsigned long long;  // CUdeviceptr

constexpr Result kSuccess = 0;
constexpr Result kInvalidValue = 1;  // CUDA_ERROR_INVALID_VALUE, and so on
constexpr Result kOutOfMemory = 2;
constexpr Result kOperatingSystem = 304;
constexpr Result kNotReady = 600;
constexpr Result kNotPermitted = 800;
constexpr Result kNotSupported = 801;

constexpr unsigned kHostPortable = 1;        // CU_MEMHOSTREGISTER_, CU_MEMHOSTALLOC_PORTABLE
constexpr unsigned kHostDeviceMap = 2;       // .._DEVICEMAP
constexpr unsigned kEventBlockingSync = 1;   // CU_EVENT_BLOCKING_SYNC
constexpr unsigned kEventDisableTiming = 2;  // CU_EVENT_DISABLE_TIMING
constexpr unsigned kStreamNonBlocking = 1;   // CU_STREAM_NON_BLOCKING
constexpr int kKernelTimeout = 17;           // CU_DEVICE_ATTRIBUTE_KERNEL_EXEC_TIMEOUT
constexpr int kCapabilityMajor = 75;         // CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR
constexpr int kCapabilityMinor = 76;         // .._MINOR
constexpr int kSourceInStreamOrder = 1;      // CU_MEMCPY_SRC_ACCESS_ORDER_STREAM
constexpr int kBatchVersion = 12080;         // the CUDA whose cuMemcpyBatchAsync is declared below
constexpr std::uint64_t kLegacyStream = 1;   // CU_GET_PROC_ADDRESS_LEGACY_STREAM

struct Uuid {  // CUuuid
  unsigned char bytes[16];
};

struct Location {  // CUmemLocation; all zero: no hint
  int type = 0;
  int id = 0;
};

struct CopyAttributes {  // CUmemcpyAttributes
  int source_order = 0;
  Location source_hint;
  Location destination_hint;
  unsigned flags = 0;
};
static_assert(sizeof(CopyAttributes) == 24, "CUmemcpyAttributes has 24 bytes");

// The functions in use, named after theirs.
struct Api {
  Result (*get_error_name)(Result, const char**) = nullptr;
  Result (*get_error_string)(Result, const char**) = nullptr;
  Result (*init)(unsigned flags) = nullptr;
  Result (*driver_get_version)(int*) = nullptr;
  Result (*get_proc_address)(const char*, void**, int cuda_version, std::uint64_t flags,
                             int* status) = nullptr;  // null before CUDA 12.0

  Result (*device_get)(Device*, int ordinal) = nullptr;
  Result (*device_get_count)(int*) = nullptr;
  Result (*device_get_name)(char*, int length, Device) = nullptr;
  Result (*device_get_uuid)(Uuid*, Device) = nullptr;
  Result (*device_total_mem)(std::size_t*, Device) = nullptr;
  Result (*device_get_attribute)(int*, int attribute, Device) = nullptr;
  Result (*device_primary_ctx_retain)(Context*, Device) = nullptr;
  Result (*device_primary_ctx_release)(Device) = nullptr;
  Result (*ctx_push_current)(Context) = nullptr;
  Result (*ctx_pop_current)(Context*) = nullptr;

  Result (*mem_get_info)(std::size_t* free, std::size_t* total) = nullptr;
  Result (*mem_host_alloc)(void**, std::size_t, unsigned flags) = nullptr;
  Result (*mem_free_host)(void*) = nullptr;
  Result (*mem_host_register)(void*, std::size_t, unsigned flags) = nullptr;
  Result (*mem_host_unregister)(void*) = nullptr;
  Result (*mem_host_get_device_pointer)(DeviceAddress*, void*, unsigned flags) = nullptr;
  Result (*memcpy_htod_async)(DeviceAddress, const void*, std::size_t, Stream) = nullptr;
  // As of CUDA 12.8; null where the driver has it not. 13.0 dropped fail_index from the function of this
  // name, and drivers hand out either, by the version asked for. It must not be given the default stream.
  Result (*memcpy_batch_async)(DeviceAddress* destinations, DeviceAddress* sources, std::size_t* sizes,
                               std::size_t count, CopyAttributes*, std::size_t* first_of_attributes,
                               std::size_t num_attributes, std::size_t* fail_index, Stream) = nullptr;

  Result (*stream_create)(Stream*, unsigned flags) = nullptr;
  Result (*stream_destroy)(Stream) = nullptr;
  Result (*stream_synchronize)(Stream) = nullptr;
  Result (*stream_wait_event)(Stream, Event, unsigned flags) = nullptr;
  Result (*event_create)(Event*, unsigned flags) = nullptr;
  Result (*event_destroy)(Event) = nullptr;
  Result (*event_record)(Event, Stream) = nullptr;
  Result (*event_query)(Event) = nullptr;
  Result (*event_synchronize)(Event) = nullptr;
  Result (*event_elapsed_time)(float* milliseconds, Event start, Event end) = nullptr;
};

// A call of the driver that failed.
class CudaError : public std::runtime_error {
 public:
  CudaError(const std::string& what, Result code, std::string name)
      : std::runtime_error(what), code(code), name(std::move(name)) {}

  Result code;
  std::string name;  // "CUDA_ERROR_OUT_OF_MEMORY"
};

// Any thread. The library stays loaded to the end of the process: the driver's own threads run in it.
class Driver {
 public:
  // Throws SystemFailure where the library cannot be loaded or lacks a function, CudaError where it does not
  // start.
  explicit Driver(const std::string& library);

  const Api& api() const { return api_; }
  int version() const;  // 12040 is 12.4
  int device_count() const;
  std::string name(int ordinal) const;
  std::pair<int, int> capability(int ordinal) const;
  std::size_t total_bytes(int ordinal) const;
  bool has_display(int ordinal) const;  // whether kernels are timed, as on a card that a display needs too
  std::string uuid(int ordinal) const;
  // Free and total bytes; makes the primary context, for as long as the call lasts, where there is none.
  std::pair<std::size_t, std::size_t> memory(int ordinal) const;

  Device device(int ordinal) const;  // throws CudaError for one that is not there
  // Throws CudaError unless `result` is success; `function` is the one that gave it.
  void check(Result result, const char* function) const {
    if (result != kSuccess) fail(result, function);
  }

 private:
  [[noreturn]] void fail(Result result, const char* function) const;

  Api api_;
};

// Makes a context current in this thread for as long as it lives, whatever was current before.
class CurrentContext {
 public:
  CurrentContext(const Driver& driver, Context context) : api_(driver.api()) {
    driver.check(api_.ctx_push_current(context), "cuCtxPushCurrent");
  }
  ~CurrentContext() {
    Context popped = nullptr;
    (void)api_.ctx_pop_current(&popped);
  }
  CurrentContext(const CurrentContext&) = delete;
  CurrentContext& operator=(const CurrentContext&) = delete;

 private:
  const Api& api_;
};

}  // namespace moeinf::cuda
