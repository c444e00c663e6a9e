#pragma once
// Calls of what is not the engine's own code: rules and kernels of a user's ops. What they throw is
// an error like any other.
//
// Threading: any thread.

#include "troupe/schema/error.hpp"

#include <exception>
#include <new>

namespace troupe {

// What `f` returns, a result; or an error with what it has thrown.
template <class F>
auto guarded(F&& f) -> decltype(f()) {
  try {
    return f();
  } catch (const std::bad_alloc&) {
    return error(error_code::failed, "there is no memory for it");
  } catch (const std::exception& e) {
    return error(error_code::failed, e.what());
  } catch (...) {
    return error(error_code::failed, "an exception of unknown type");
  }
}

}  // namespace troupe
