# lathe_library(NAME LINKS...): one static library of all .cpp files in this folder and below.
function(lathe_library name)
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/*.cpp)
  add_library(${name} STATIC ${sources})
  lathe_options(${name})
  target_link_libraries(${name} PUBLIC ${ARGN})
  lathe_group(${name})
endfunction()

# lathe_group(NAME): files of the target that allow it are compiled ten at a time (LATHE_UNITY). The groups are found when
# CMake runs; where an edit brings two files of a group in each other's way, run it again.
function(lathe_group name)
  if(NOT LATHE_UNITY OR NOT Python3_EXECUTABLE)
    return()
  endif()
  get_target_property(sources ${name} SOURCES)
  set(lines "")
  foreach(source ${sources})
    get_source_file_property(left_out ${source} HEADER_FILE_ONLY)
    if(NOT left_out)
      get_filename_component(path ${source} ABSOLUTE)
      string(APPEND lines "${path}\n")
    endif()
  endforeach()
  file(WRITE ${CMAKE_CURRENT_BINARY_DIR}/${name}_sources.txt "${lines}")
  execute_process(COMMAND ${Python3_EXECUTABLE} ${PROJECT_SOURCE_DIR}/cmake/source_groups.py ${PROJECT_SOURCE_DIR}
                  INPUT_FILE ${CMAKE_CURRENT_BINARY_DIR}/${name}_sources.txt OUTPUT_VARIABLE groups
                  COMMAND_ERROR_IS_FATAL ANY)
  string(REGEX MATCHALL "[^\n]+" groups "${groups}")
  foreach(line ${groups})
    string(REGEX MATCH "^([0-9]+) (.*)$" line ${line})
    set_source_files_properties(${CMAKE_MATCH_2} PROPERTIES UNITY_GROUP ${CMAKE_MATCH_1})
  endforeach()
  set_target_properties(${name} PROPERTIES UNITY_BUILD ON UNITY_BUILD_MODE GROUP)
  # A type that stands in an included file's anonymous namespace looks like a header's.
  target_compile_options(${name} PRIVATE -Wno-subobject-linkage)
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
