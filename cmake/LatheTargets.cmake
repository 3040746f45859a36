# lathe_library(NAME LINKS...): one static library of all .cpp files in this folder and below.
function(lathe_library name)
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/*.cpp)
  add_library(${name} STATIC ${sources})
  lathe_options(${name})
  target_link_libraries(${name} PUBLIC ${ARGN})
endfunction()

# lathe_precompile(NAME HEADERS...): standard headers, and these, are read once for a target of many files; they are a
# third of what each costs to build. Not beside a compiler cache, which looks at every header of a file.
function(lathe_precompile name)
  get_target_property(sources ${name} SOURCES)
  list(LENGTH sources files)
  if(files GREATER 15 AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
    target_precompile_headers(${name} PRIVATE <algorithm> <cmath> <deque> <functional> <map> <memory> <mutex> <optional>
                                              <set> <span> <string> <unordered_map> <variant> <vector> <fmt/format.h>
                                              ${ARGN})
    # As with -Wrestrict below: g++ 12 sees what is not there, and of precompiled headers is not silent about it.
    target_compile_options(${name} PRIVATE -Wno-stringop-overflow -Wno-array-bounds)
  endif()
endfunction()

function(lathe_options name)
  target_include_directories(${name} PUBLIC $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}>
                                            $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>)
  lathe_warnings(${name})
endfunction()

function(lathe_warnings name)
  # -Wrestrict: g++ 12 sees overlaps in std::string's operator+ that are not there (GCC bug 105651).
  target_compile_options(${name} PRIVATE -Wall -Wextra -Wshadow -Wno-missing-field-initializers -Wno-restrict
                                         $<$<BOOL:${LATHE_WERROR}>:-Werror>)
  if(LATHE_SANITIZE)
    # Weights are read where they lie in the model's file, aligned only as they are there.
    target_compile_options(${name} PRIVATE -fsanitize=${LATHE_SANITIZE} -fno-sanitize=alignment -fno-omit-frame-pointer)
    target_link_options(${name} PUBLIC -fsanitize=${LATHE_SANITIZE})
  endif()
endfunction()
