// The knobs of fake_cuda, a stand-in for libcuda.so.1 in which device memory is memory of the process.
//
// Every stream is a thread that works off its queue. Copies and computing can be held back, so that whatever
// relies on an order that it did not ask for shows wrong bytes. The device's clock stands still but for
// copies, which take a millisecond for each KiB. What a driver may refuse is refused: copies from memory that
// is not pinned, or that reaches from one registration into another, calls without a current context, batches
// on the default stream.
#pragma once

#include <cstddef>

extern "C" {

// As after loading: waits for what is queued, lifts every hold and failure.
void fake_reset();
void fake_set_version(int version);   // of the driver; cuMemcpyBatchAsync is there from 12080 on
void fake_set_pin_limit(long bytes);  // what is pinned beyond is refused
void fake_set_alias(int on);          // the device sees each registration at an address of its own
// 1: copies wait on their streams; 2: until somebody waits inside the driver; 0: they do not.
void fake_hold_copies(int how);
void fake_hold_compute(int on);  // what fake_compute queued waits
// After so many good calls of the function, every one fails; code 0 lifts it.
void fake_fail(const char* function, int code, int after);
void fake_wait_until_waiting();  // blocks until a thread waits inside the driver
void fake_settle();              // blocks until every stream is done, or held back
void fake_advance(double milliseconds);
// Queues what a kernel would do to memory: destination = source.
int fake_compute(void* stream, void* destination, const void* source, std::size_t num_bytes);
int fake_create_stream(void** stream);  // for computing; fake_reset destroys it
int fake_synchronize(void* stream);
int fake_num_live();     // streams, events, pinned ranges and context shares that the caller holds
int fake_num_batches();  // submissions with cuMemcpyBatchAsync
int fake_num_copies();   // copies, whether of a batch or single

}  // extern "C"
