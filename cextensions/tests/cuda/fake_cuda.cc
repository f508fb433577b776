// The functions of the driver that the copier uses, and the knobs of fake_cuda.h.
#include "fake_cuda.h"

#include "fake_cuda_state.h"

#define FAKE_API extern "C" __attribute__((visibility("default")))

namespace {

struct Attributes {
  int source_order;
  int hints[4];
  unsigned flags;
};

int batch(unsigned long long* to, unsigned long long* from, std::size_t* sizes, std::size_t count,
          Attributes* attributes, std::size_t* first, std::size_t num_attributes, std::size_t*,
          void* stream) {
  Lock lock(state().mutex);
  if (const int code = enter(lock, "cuMemcpyBatchAsync")) return code;
  if (stream == nullptr || count == 0 || num_attributes != 1 || first[0] != 0) return kInvalidValue;
  if (attributes->source_order != 1 || attributes->flags > 1) return kInvalidValue;
  std::vector<std::uintptr_t> hosts;
  for (std::size_t i = 0; i < count; ++i) {
    const std::uintptr_t host = from[i] & ((std::uintptr_t{1} << kAliasBits) - 1);
    if (sizes[i] == 0 || !is_pinned(host, sizes[i])) return kInvalidValue;
    const auto range = std::prev(state().pinned.upper_bound(host));
    if (range->second.number != from[i] >> kAliasBits) return kInvalidValue;  // not where the device sees it
    hosts.push_back(host);
  }
  ++state().num_batches;
  for (std::size_t i = count; i-- > 0;) {  // in no order that could be relied on
    add_copy(lock, stream_of(stream), to[i], reinterpret_cast<const void*>(hosts[i]), sizes[i]);
  }
  return 0;
}

}  // namespace

FAKE_API void fake_reset() {
  State& s = state();
  Lock lock(s.mutex);
  s.hold_copies = 0;
  s.hold_compute = s.alias = false;
  s.changed.notify_all();
  finish(lock, &s.default_stream);
  for (FakeStream* stream : s.compute_streams) {
    finish(lock, stream);
    delete stream;
  }
  s.compute_streams.clear();
  s.failures.clear();
  s.version = 13000;
  s.pin_limit = INT64_MAX;
  s.num_batches = s.num_copies = 0;
}

FAKE_API void fake_set_version(int version) {
  const Lock lock(state().mutex);
  state().version = version;
}

FAKE_API void fake_set_pin_limit(long bytes) {
  const Lock lock(state().mutex);
  state().pin_limit = bytes;
}

FAKE_API void fake_set_alias(int on) {
  const Lock lock(state().mutex);
  state().alias = on != 0;
}

FAKE_API void fake_hold_copies(int how) {
  const Lock lock(state().mutex);
  state().hold_copies = how;
  state().changed.notify_all();
}

FAKE_API void fake_hold_compute(int on) {
  const Lock lock(state().mutex);
  state().hold_compute = on != 0;
  state().changed.notify_all();
}

FAKE_API void fake_fail(const char* function, int code, int after) {
  const Lock lock(state().mutex);
  state().failures.erase(function);
  if (code != 0) state().failures[function] = {code, after};
}

FAKE_API void fake_wait_until_waiting() {
  Lock lock(state().mutex);
  state().changed.wait(lock, [] { return state().num_waiting > 0; });
}

FAKE_API void fake_settle() {
  Lock lock(state().mutex);
  state().changed.wait(lock, has_settled);
}

FAKE_API void fake_advance(double milliseconds) {
  const Lock lock(state().mutex);
  state().clock_ms += milliseconds;
}

FAKE_API int fake_compute(void* stream, void* destination, const void* source, std::size_t num_bytes) {
  const Lock lock(state().mutex);
  add(lock, stream_of(stream),
      {[] { return !state().hold_compute; }, [=] { std::memcpy(destination, source, num_bytes); }, [] {}});
  return 0;
}

FAKE_API int fake_create_stream(void** stream) {
  const Lock lock(state().mutex);
  state().compute_streams.push_back(new FakeStream);
  *stream = state().compute_streams.back();
  return 0;
}

FAKE_API int fake_synchronize(void* stream) {
  Lock lock(state().mutex);
  state().changed.wait(lock, [&] { return stream_of(stream)->queue.empty(); });
  return 0;
}

FAKE_API int fake_num_live() {
  const Lock lock(state().mutex);
  int live = state().num_streams + state().num_events + static_cast<int>(state().pinned.size());
  for (const FakeContext& context : state().contexts) live += context.num_shares;
  return live;
}

FAKE_API int fake_num_batches() {
  const Lock lock(state().mutex);
  return state().num_batches;
}

FAKE_API int fake_num_copies() {
  const Lock lock(state().mutex);
  return state().num_copies;
}

FAKE_API int cuGetErrorName(int code, const char** name) {
  static const std::map<int, const char*> kNames = {{kInvalidValue, "CUDA_ERROR_INVALID_VALUE"},
                                                    {kOutOfMemory, "CUDA_ERROR_OUT_OF_MEMORY"},
                                                    {100, "CUDA_ERROR_NO_DEVICE"},
                                                    {kInvalidDevice, "CUDA_ERROR_INVALID_DEVICE"},
                                                    {kInvalidContext, "CUDA_ERROR_INVALID_CONTEXT"},
                                                    {kInvalidHandle, "CUDA_ERROR_INVALID_HANDLE"},
                                                    {700, "CUDA_ERROR_ILLEGAL_ADDRESS"},
                                                    {801, "CUDA_ERROR_NOT_SUPPORTED"}};
  const auto found = kNames.find(code);
  *name = found == kNames.end() ? nullptr : found->second;
  return found == kNames.end() ? kInvalidValue : 0;
}

FAKE_API int cuGetErrorString(int code, const char** text) {
  const char* name = nullptr;
  *text = nullptr;
  if (cuGetErrorName(code, &name) != 0) return kInvalidValue;
  *text = code == kOutOfMemory ? "out of memory" : "as the fake says";
  return 0;
}

FAKE_API int cuInit(unsigned flags) {
  const Lock lock(state().mutex);
  if (const int code = enter(lock, "cuInit", false)) return code;
  return flags == 0 ? 0 : kInvalidValue;
}

FAKE_API int cuDriverGetVersion(int* version) {
  const Lock lock(state().mutex);
  *version = state().version;
  return 0;
}

FAKE_API int cuGetProcAddress_v2(const char* symbol, void** function, int version, std::uint64_t,
                                 int* status) {
  const Lock lock(state().mutex);
  *function = nullptr;
  *status = 1;  // not found
  if (version > state().version) return kInvalidValue;
  // From 13000 on another function goes by this name, which this library has not.
  if (std::strcmp(symbol, "cuMemcpyBatchAsync") == 0 && version >= 12080 && version < 13000) {
    *function = reinterpret_cast<void*>(&batch);
    *status = 0;
  }
  return 0;
}

FAKE_API int cuDeviceGetCount(int* count) {
  *count = kNumDevices;
  return 0;
}

FAKE_API int cuDeviceGet(int* device, int ordinal) {
  if (ordinal < 0 || ordinal >= kNumDevices) return kInvalidDevice;
  *device = ordinal;
  return 0;
}

FAKE_API int cuDeviceGetName(char* name, int length, int device) {
  std::strncpy(name, device == 0 ? "Fake GPU" : "Other fake GPU", static_cast<std::size_t>(length));
  return 0;
}

FAKE_API int cuDeviceGetUuid_v2(unsigned char* uuid, int device) {
  for (int i = 0; i < 16; ++i) uuid[i] = static_cast<unsigned char>(0xf0 - i * 16 + device);
  return 0;
}

FAKE_API int cuDeviceTotalMem_v2(std::size_t* bytes, int) {
  *bytes = kTotalBytes;
  return 0;
}

FAKE_API int cuDeviceGetAttribute(int* value, int attribute, int device) {
  if (attribute != 17 && attribute != 75 && attribute != 76) return kInvalidValue;
  *value = attribute == 17 ? device == 0 : attribute == 75 ? 8 + device : 6;  // the first drives a display
  return 0;
}

FAKE_API int cuDevicePrimaryCtxRetain(void** context, int device) {
  const Lock lock(state().mutex);
  if (const int code = enter(lock, "cuDevicePrimaryCtxRetain", false)) return code;
  FakeContext* wanted = &state().contexts[device];
  wanted->device = device;
  ++wanted->num_shares;
  *context = wanted;
  return 0;
}

FAKE_API int cuDevicePrimaryCtxRelease_v2(int device) {
  const Lock lock(state().mutex);
  if (state().contexts[device].num_shares == 0) return kInvalidContext;
  --state().contexts[device].num_shares;
  return 0;
}

FAKE_API int cuCtxPushCurrent_v2(void* context) {
  current.push_back(static_cast<FakeContext*>(context));
  return 0;
}

FAKE_API int cuCtxPopCurrent_v2(void** context) {
  if (current.empty()) return kInvalidContext;
  *context = current.back();
  current.pop_back();
  return 0;
}

FAKE_API int cuMemGetInfo_v2(std::size_t* free, std::size_t* total) {
  const Lock lock(state().mutex);
  if (const int code = enter(lock, "cuMemGetInfo")) return code;
  *free = kFreeBytes;
  *total = kTotalBytes;
  return 0;
}

FAKE_API int cuMemHostAlloc(void** memory, std::size_t num_bytes, unsigned flags) {
  const Lock lock(state().mutex);
  if (const int code = enter(lock, "cuMemHostAlloc")) return code;
  if (flags != 3) return kInvalidValue;
  void* const allocated = std::aligned_alloc(kPage, (num_bytes + kPage - 1) / kPage * kPage);
  if (allocated == nullptr) return kOutOfMemory;
  const int code = pin(reinterpret_cast<std::uintptr_t>(allocated), num_bytes, true);
  if (code != 0) {
    std::free(allocated);
  } else {
    *memory = allocated;
  }
  return code;
}

FAKE_API int cuMemFreeHost(void* memory) {
  const Lock lock(state().mutex);
  if (const int code = enter(lock, "cuMemFreeHost")) return code;
  const int code = unpin(reinterpret_cast<std::uintptr_t>(memory), true);
  if (code == 0) std::free(memory);
  return code;
}

FAKE_API int cuMemHostRegister_v2(void* memory, std::size_t num_bytes, unsigned flags) {
  const Lock lock(state().mutex);
  if (const int code = enter(lock, "cuMemHostRegister")) return code;
  return flags != 3 ? kInvalidValue : pin(reinterpret_cast<std::uintptr_t>(memory), num_bytes, false);
}

FAKE_API int cuMemHostUnregister(void* memory) {
  const Lock lock(state().mutex);
  if (const int code = enter(lock, "cuMemHostUnregister")) return code;
  return unpin(reinterpret_cast<std::uintptr_t>(memory), false);
}

FAKE_API int cuMemHostGetDevicePointer_v2(unsigned long long* device, void* memory, unsigned flags) {
  const Lock lock(state().mutex);
  if (const int code = enter(lock, "cuMemHostGetDevicePointer")) return code;
  const auto host = reinterpret_cast<std::uintptr_t>(memory);
  if (flags != 0 || !is_pinned(host, 1)) return kInvalidValue;
  *device = host | std::prev(state().pinned.upper_bound(host))->second.number << kAliasBits;
  return 0;
}

FAKE_API int cuMemcpyHtoDAsync_v2(unsigned long long to, const void* from, std::size_t num_bytes,
                                  void* stream) {
  const Lock lock(state().mutex);
  if (const int code = enter(lock, "cuMemcpyHtoDAsync")) return code;
  if (num_bytes == 0 || !is_pinned(reinterpret_cast<std::uintptr_t>(from), num_bytes)) return kInvalidValue;
  add_copy(lock, stream_of(stream), to, from, num_bytes);
  return 0;
}

FAKE_API int cuStreamCreate(void** stream, unsigned flags) {
  const Lock lock(state().mutex);
  if (const int code = enter(lock, "cuStreamCreate")) return code;
  if (flags != 1) return kInvalidValue;  // else it would wait for the default stream
  *stream = new FakeStream;
  ++state().num_streams;
  return 0;
}

FAKE_API int cuStreamDestroy_v2(void* stream) {
  Lock lock(state().mutex);
  if (const int code = enter(lock, "cuStreamDestroy")) return code;
  finish(lock, stream_of(stream));
  delete stream_of(stream);
  --state().num_streams;
  return 0;
}

FAKE_API int cuStreamSynchronize(void* stream) {
  Lock lock(state().mutex);
  if (const int code = enter(lock, "cuStreamSynchronize")) return code;
  await(lock, [&] { return stream_of(stream)->queue.empty(); });
  return 0;
}

FAKE_API int cuStreamWaitEvent(void* stream, void* event, unsigned flags) {
  const Lock lock(state().mutex);
  if (const int code = enter(lock, "cuStreamWaitEvent")) return code;
  // The mark of now: a later recording makes another.
  const std::shared_ptr<Mark> mark = static_cast<FakeEvent*>(event)->mark;
  if (flags != 0 || !mark) return kInvalidValue;
  add(lock, stream_of(stream), {[=] { return mark->done; }, [] {}, [] {}});
  return 0;
}

FAKE_API int cuEventCreate(void** event, unsigned flags) {
  const Lock lock(state().mutex);
  if (const int code = enter(lock, "cuEventCreate")) return code;
  *event = new FakeEvent{flags, nullptr};
  ++state().num_events;
  return 0;
}

FAKE_API int cuEventDestroy_v2(void* event) {
  const Lock lock(state().mutex);
  if (const int code = enter(lock, "cuEventDestroy")) return code;
  delete static_cast<FakeEvent*>(event);
  --state().num_events;
  return 0;
}

FAKE_API int cuEventRecord(void* event, void* stream) {
  const Lock lock(state().mutex);
  if (const int code = enter(lock, "cuEventRecord")) return code;
  const auto mark = std::make_shared<Mark>();
  static_cast<FakeEvent*>(event)->mark = mark;
  add(lock, stream_of(stream), {[] { return true; }, [] {}, [=] { *mark = {true, state().clock_ms}; }});
  return 0;
}

FAKE_API int cuEventQuery(void* event) {
  const Lock lock(state().mutex);
  if (const int code = enter(lock, "cuEventQuery")) return code;
  const std::shared_ptr<Mark>& mark = static_cast<FakeEvent*>(event)->mark;
  return !mark || mark->done ? 0 : kNotReady;
}

FAKE_API int cuEventSynchronize(void* event) {
  Lock lock(state().mutex);
  if (const int code = enter(lock, "cuEventSynchronize")) return code;
  const std::shared_ptr<Mark> mark = static_cast<FakeEvent*>(event)->mark;
  if (mark && !mark->done) await(lock, [&] { return mark->done; });
  return 0;
}

FAKE_API int cuEventElapsedTime(float* milliseconds, void* start, void* end) {
  const Lock lock(state().mutex);
  if (const int code = enter(lock, "cuEventElapsedTime")) return code;
  const FakeEvent& first = *static_cast<FakeEvent*>(start);
  const FakeEvent& last = *static_cast<FakeEvent*>(end);
  if (((first.flags | last.flags) & 2) != 0 || !first.mark || !last.mark) return kInvalidHandle;
  if (!first.mark->done || !last.mark->done) return kNotReady;
  *milliseconds = static_cast<float>(last.mark->time_ms - first.mark->time_ms);
  return 0;
}
