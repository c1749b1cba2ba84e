// Rows of text in aligned columns.
//
// Threading: thread-compatible.
#ifndef CLIENT_CTL_TABLE_H_
#define CLIENT_CTL_TABLE_H_

#include <string>
#include <vector>

namespace ballast::ctl {

class Table {
 public:
  explicit Table(std::vector<std::string> header);
  // As many cells as the header has.
  void AddRow(std::vector<std::string> cells);
  // With a newline after each line; the last column is not padded.
  std::string ToString() const;

 private:
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace ballast::ctl

#endif  // CLIENT_CTL_TABLE_H_
