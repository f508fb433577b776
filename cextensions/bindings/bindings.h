// What each file of bindings adds to moeinf._native.
#pragma once

#include <nanobind/nanobind.h>

namespace moeinf {

void bind_kernels(nanobind::module_& m);
void bind_checksums(nanobind::module_& m);
void bind_formats(nanobind::module_& m);
void bind_attention(nanobind::module_& m);
void bind_heads(nanobind::module_& m);
void bind_index_keys(nanobind::module_& m);
void bind_streams(nanobind::module_& m);
void bind_mixed_heads(nanobind::module_& m);
void bind_router(nanobind::module_& m);
void bind_latent(nanobind::module_& m);
void bind_recurrent(nanobind::module_& m);
void bind_policy(nanobind::module_& m);
void bind_cuda(nanobind::module_& m);
void bind_sampling(nanobind::module_& m);
void bind_pages(nanobind::module_& m);
void bind_reader(nanobind::module_& m);
void bind_threads(nanobind::module_& m);
void bind_cache(nanobind::module_& m);
void bind_loads(nanobind::module_& m);
void bind_visits(nanobind::module_& m);

}  // namespace moeinf
