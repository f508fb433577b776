#pragma once

// Asked for each request of operator new; true refuses it. False, unless another file defines it.
bool allocation_fails() noexcept;
