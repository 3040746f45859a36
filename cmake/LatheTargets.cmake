# lathe_library(NAME LINKS...): one static library of all .cpp files in this folder and below.
function(lathe_library name)
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/*.cpp)
  add_library(${name} STATIC ${sources})
  lathe_options(${name})
  target_link_libraries(${name} PUBLIC ${ARGN})
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
