// Compiles only where our declarations of the driver are those of NVIDIA's headers (of any CUDA from 13.0
// on).
#include <cuda.h>
#include <cudaTypedefs.h>

#include <type_traits>

#include "moeinf/cuda/driver.h"

namespace ours = moeinf::cuda;

namespace {

template <typename T, typename = void>
struct Size {  // of what a pointer points to; 0 where nobody can know
  static constexpr std::size_t value = 0;
};
template <typename T>
struct Size<T, std::enable_if_t<!std::is_void_v<T> && (sizeof(T) > 0)>> {
  static constexpr std::size_t value = sizeof(T);
};

// Passed in the same way: pointers to things of one size, or whole numbers of one width.
template <typename A, typename B>
constexpr bool alike() {
  if constexpr (std::is_pointer_v<A> && std::is_pointer_v<B>) {
    constexpr std::size_t a = Size<std::remove_pointer_t<A>>::value,
                          b = Size<std::remove_pointer_t<B>>::value;
    return a == b || a == 0 || b == 0;
  } else {
    return std::is_pointer_v<A> == std::is_pointer_v<B> && sizeof(A) == sizeof(B) &&
           !std::is_floating_point_v<A> && !std::is_floating_point_v<B>;
  }
}

template <typename A, typename B>
struct Fits : std::false_type {};
template <typename R, typename... A, typename S, typename... B>
struct Fits<R (*)(A...), S (*)(B...)> {
  static constexpr bool value = [] {
    if constexpr (sizeof...(A) == sizeof...(B)) return alike<R, S>() && (alike<A, B>() && ...);
    return false;
  }();
};

#define FITS(theirs, member) \
  static_assert(Fits<theirs, decltype(ours::Api::member)>::value, #theirs " is declared otherwise")

FITS(PFN_cuGetErrorName_v6000, get_error_name);
FITS(PFN_cuGetErrorString_v6000, get_error_string);
FITS(PFN_cuInit_v2000, init);
FITS(PFN_cuDriverGetVersion_v2020, driver_get_version);
FITS(PFN_cuGetProcAddress_v12000, get_proc_address);
FITS(PFN_cuDeviceGet_v2000, device_get);
FITS(PFN_cuDeviceGetCount_v2000, device_get_count);
FITS(PFN_cuDeviceGetName_v2000, device_get_name);
FITS(PFN_cuDeviceGetUuid_v11040, device_get_uuid);
FITS(PFN_cuDeviceTotalMem_v3020, device_total_mem);
FITS(PFN_cuDeviceGetAttribute_v2000, device_get_attribute);
FITS(PFN_cuDevicePrimaryCtxRetain_v7000, device_primary_ctx_retain);
FITS(PFN_cuDevicePrimaryCtxRelease_v11000, device_primary_ctx_release);
FITS(PFN_cuCtxPushCurrent_v4000, ctx_push_current);
FITS(PFN_cuCtxPopCurrent_v4000, ctx_pop_current);
FITS(PFN_cuMemGetInfo_v3020, mem_get_info);
FITS(PFN_cuMemHostAlloc_v2020, mem_host_alloc);
FITS(PFN_cuMemFreeHost_v2000, mem_free_host);
FITS(PFN_cuMemHostRegister_v6050, mem_host_register);
FITS(PFN_cuMemHostUnregister_v4000, mem_host_unregister);
FITS(PFN_cuMemHostGetDevicePointer_v3020, mem_host_get_device_pointer);
FITS(PFN_cuMemcpyHtoDAsync_v3020, memcpy_htod_async);
FITS(PFN_cuMemcpyBatchAsync_v12080, memcpy_batch_async);
FITS(PFN_cuStreamCreate_v2000, stream_create);
FITS(PFN_cuStreamDestroy_v4000, stream_destroy);
FITS(PFN_cuStreamSynchronize_v2000, stream_synchronize);
FITS(PFN_cuStreamWaitEvent_v3020, stream_wait_event);
FITS(PFN_cuEventCreate_v2000, event_create);
FITS(PFN_cuEventDestroy_v4000, event_destroy);
FITS(PFN_cuEventRecord_v2000, event_record);
FITS(PFN_cuEventQuery_v2000, event_query);
FITS(PFN_cuEventSynchronize_v2000, event_synchronize);
FITS(PFN_cuEventElapsedTime_v2000, event_elapsed_time);
static_assert(!Fits<PFN_cuMemcpyBatchAsync_v13000, decltype(ours::Api::memcpy_batch_async)>::value,
              "the batch of CUDA 13 is another function");

static_assert(ours::kInvalidValue == CUDA_ERROR_INVALID_VALUE &&
              ours::kOutOfMemory == CUDA_ERROR_OUT_OF_MEMORY &&
              ours::kOperatingSystem == CUDA_ERROR_OPERATING_SYSTEM &&
              ours::kNotReady == CUDA_ERROR_NOT_READY && ours::kNotPermitted == CUDA_ERROR_NOT_PERMITTED &&
              ours::kNotSupported == CUDA_ERROR_NOT_SUPPORTED);
static_assert(ours::kHostPortable == CU_MEMHOSTREGISTER_PORTABLE &&
              ours::kHostPortable == CU_MEMHOSTALLOC_PORTABLE &&
              ours::kHostDeviceMap == CU_MEMHOSTREGISTER_DEVICEMAP &&
              ours::kHostDeviceMap == CU_MEMHOSTALLOC_DEVICEMAP);
static_assert(ours::kEventBlockingSync == CU_EVENT_BLOCKING_SYNC &&
              ours::kEventDisableTiming == CU_EVENT_DISABLE_TIMING &&
              ours::kStreamNonBlocking == CU_STREAM_NON_BLOCKING);
static_assert(ours::kKernelTimeout == CU_DEVICE_ATTRIBUTE_KERNEL_EXEC_TIMEOUT);
static_assert(ours::kCapabilityMajor == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR &&
              ours::kCapabilityMinor == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
static_assert(ours::kSourceInStreamOrder == CU_MEMCPY_SRC_ACCESS_ORDER_STREAM &&
              ours::kLegacyStream == CU_GET_PROC_ADDRESS_LEGACY_STREAM);
static_assert(sizeof(ours::CopyAttributes) == sizeof(CUmemcpyAttributes_v1) &&
              offsetof(ours::CopyAttributes, source_order) ==
                  offsetof(CUmemcpyAttributes_v1, srcAccessOrder) &&
              offsetof(ours::CopyAttributes, source_hint) == offsetof(CUmemcpyAttributes_v1, srcLocHint) &&
              offsetof(ours::CopyAttributes, destination_hint) ==
                  offsetof(CUmemcpyAttributes_v1, dstLocHint) &&
              offsetof(ours::CopyAttributes, flags) == offsetof(CUmemcpyAttributes_v1, flags));

}  // namespace
