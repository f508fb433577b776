#include "moeinf/cuda/driver.h"

#include <dlfcn.h>

#include <cerrno>
#include <cstdio>

#include "moeinf/errors.h"

namespace moeinf::cuda {
namespace {

template <typename Function>
void find(void* library, const char* name, Function* function) {
  *function = reinterpret_cast<Function>(::dlsym(library, name));
}

template <typename Function>
void require(void* library, const std::string& path, const char* name, Function* function) {
  find(library, name, function);
  if (*function == nullptr) {
    throw SystemFailure(ENOSYS, path + " has no " + name + ": the NVIDIA driver is too old, or no driver");
  }
}

Api load(const std::string& path) {
  void* library = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* reason = ::dlerror();
    throw SystemFailure(ENOENT, reason != nullptr ? reason : path + ": cannot be loaded");
  }
  Api api;
  const auto take = [&](const char* name, auto* function) { require(library, path, name, function); };
  take("cuGetErrorName", &api.get_error_name);
  take("cuGetErrorString", &api.get_error_string);
  take("cuInit", &api.init);
  take("cuDriverGetVersion", &api.driver_get_version);
  take("cuDeviceGet", &api.device_get);
  take("cuDeviceGetCount", &api.device_get_count);
  take("cuDeviceGetName", &api.device_get_name);
  take("cuDeviceTotalMem_v2", &api.device_total_mem);
  take("cuDeviceGetAttribute", &api.device_get_attribute);
  take("cuDevicePrimaryCtxRetain", &api.device_primary_ctx_retain);
  take("cuDevicePrimaryCtxRelease_v2", &api.device_primary_ctx_release);
  take("cuCtxPushCurrent_v2", &api.ctx_push_current);
  take("cuCtxPopCurrent_v2", &api.ctx_pop_current);
  take("cuMemGetInfo_v2", &api.mem_get_info);
  take("cuMemHostAlloc", &api.mem_host_alloc);
  take("cuMemFreeHost", &api.mem_free_host);
  take("cuMemHostRegister_v2", &api.mem_host_register);
  take("cuMemHostUnregister", &api.mem_host_unregister);
  take("cuMemHostGetDevicePointer_v2", &api.mem_host_get_device_pointer);
  take("cuMemcpyHtoDAsync_v2", &api.memcpy_htod_async);
  take("cuStreamCreate", &api.stream_create);
  take("cuStreamDestroy_v2", &api.stream_destroy);
  take("cuStreamSynchronize", &api.stream_synchronize);
  take("cuStreamWaitEvent", &api.stream_wait_event);
  take("cuEventCreate", &api.event_create);
  take("cuEventDestroy_v2", &api.event_destroy);
  take("cuEventRecord", &api.event_record);
  take("cuEventQuery", &api.event_query);
  take("cuEventSynchronize", &api.event_synchronize);
  take("cuEventElapsedTime", &api.event_elapsed_time);
  find(library, "cuDeviceGetUuid_v2", &api.device_get_uuid);  // since 11.4; it knows MIG instances
  if (api.device_get_uuid == nullptr) take("cuDeviceGetUuid", &api.device_get_uuid);
  find(library, "cuGetProcAddress_v2", &api.get_proc_address);
  return api;
}

// Only by its version: the plain symbol may be of any.
void find_batch(Api* api) {
  if (api->get_proc_address == nullptr) return;
  void* function = nullptr;
  int status = 0;
  const Result result =
      api->get_proc_address("cuMemcpyBatchAsync", &function, kBatchVersion, kLegacyStream, &status);
  if (result != kSuccess || status != 0) return;
  api->memcpy_batch_async = reinterpret_cast<decltype(api->memcpy_batch_async)>(function);
}

}  // namespace

Driver::Driver(const std::string& library) : api_(load(library)) {
  check(api_.init(0), "cuInit");
  find_batch(&api_);
}

void Driver::fail(Result result, const char* function) const {
  const char* name = nullptr;
  const char* meaning = nullptr;
  const std::string number = "CUDA_ERROR_" + std::to_string(result);  // one newer than the driver knows
  if (api_.get_error_name(result, &name) != kSuccess || name == nullptr) name = number.c_str();
  if (api_.get_error_string(result, &meaning) != kSuccess || meaning == nullptr) meaning = "unknown error";
  throw CudaError(std::string(function) + ": " + meaning + " (" + name + ")", result, name);
}

int Driver::version() const {
  int version = 0;
  check(api_.driver_get_version(&version), "cuDriverGetVersion");
  return version;
}

int Driver::device_count() const {
  int count = 0;
  check(api_.device_get_count(&count), "cuDeviceGetCount");
  return count;
}

Device Driver::device(int ordinal) const {
  Device device = 0;
  check(api_.device_get(&device, ordinal), "cuDeviceGet");
  return device;
}

std::string Driver::name(int ordinal) const {
  char name[256] = {};
  check(api_.device_get_name(name, static_cast<int>(sizeof(name)) - 1, device(ordinal)), "cuDeviceGetName");
  return name;
}

std::pair<int, int> Driver::capability(int ordinal) const {
  int major = 0, minor = 0;
  check(api_.device_get_attribute(&major, kCapabilityMajor, device(ordinal)), "cuDeviceGetAttribute");
  check(api_.device_get_attribute(&minor, kCapabilityMinor, device(ordinal)), "cuDeviceGetAttribute");
  return {major, minor};
}

std::size_t Driver::total_bytes(int ordinal) const {
  std::size_t bytes = 0;
  check(api_.device_total_mem(&bytes, device(ordinal)), "cuDeviceTotalMem");
  return bytes;
}

bool Driver::has_display(int ordinal) const {
  int limited = 0;
  check(api_.device_get_attribute(&limited, kKernelTimeout, device(ordinal)), "cuDeviceGetAttribute");
  return limited != 0;
}

std::string Driver::uuid(int ordinal) const {
  Uuid uuid = {};
  check(api_.device_get_uuid(&uuid, device(ordinal)), "cuDeviceGetUuid");
  std::string text = "GPU";
  for (int i = 0; i < 16; ++i) {
    if (i == 0 || i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    char digits[3];
    std::snprintf(digits, sizeof(digits), "%02x", uuid.bytes[i]);
    text += digits;
  }
  return text;
}

std::pair<std::size_t, std::size_t> Driver::memory(int ordinal) const {
  const Device wanted = device(ordinal);
  Context context = nullptr;
  check(api_.device_primary_ctx_retain(&context, wanted), "cuDevicePrimaryCtxRetain");
  std::size_t free = 0, total = 0;
  Result result = api_.ctx_push_current(context);
  const char* function = "cuCtxPushCurrent";
  if (result == kSuccess) {
    result = api_.mem_get_info(&free, &total);
    function = "cuMemGetInfo";
    (void)api_.ctx_pop_current(&context);
  }
  (void)api_.device_primary_ctx_release(wanted);
  check(result, function);
  return {free, total};
}

}  // namespace moeinf::cuda
