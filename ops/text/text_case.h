#pragma once
#include <string>

namespace lathe {

// UTF-8 text in upper or lower case, by Unicode's one-to-one mappings, whatever the process's locale. Bytes that are no
// UTF-8 are kept.
std::string upper_case(const std::string& text);
std::string lower_case(const std::string& text);

}  // namespace lathe
