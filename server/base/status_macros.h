// Early return on errors. Both evaluate `expr` once.
//
//   RETURN_IF_ERROR(Check(name));
//   ASSIGN_OR_RETURN(UniqueFd fd, Open(path));   // declares, or assigns
#ifndef SERVER_BASE_STATUS_MACROS_H_
#define SERVER_BASE_STATUS_MACROS_H_

#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#define BALLAST_CONCAT_INNER_(a, b) a##b
#define BALLAST_CONCAT_(a, b) BALLAST_CONCAT_INNER_(a, b)

// The names are nobody's: `expr` may read a member named status_.
#define RETURN_IF_ERROR(expr)                          \
  do {                                                 \
    if (absl::Status ballast_return_if_error = (expr); \
        !ballast_return_if_error.ok()) {               \
      return ballast_return_if_error;                  \
    }                                                  \
  } while (false)

#define ASSIGN_OR_RETURN(lhs, expr)                                          \
  BALLAST_ASSIGN_OR_RETURN_(BALLAST_CONCAT_(ballast_result_, __LINE__), lhs, \
                            expr)

#define BALLAST_ASSIGN_OR_RETURN_(result, lhs, expr)   \
  auto result = (expr);                                \
  if (!result.ok()) return std::move(result).status(); \
  lhs = *std::move(result)

#endif  // SERVER_BASE_STATUS_MACROS_H_
