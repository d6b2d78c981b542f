# find_package(repoagent) gives repoagent::repoagent (shared) and repoagent::static.
get_filename_component(_repoagent "${CMAKE_CURRENT_LIST_DIR}/../../.." ABSOLUTE)

if(NOT TARGET repoagent::repoagent)
  add_library(repoagent::repoagent SHARED IMPORTED)
  set_target_properties(repoagent::repoagent PROPERTIES
    IMPORTED_LOCATION "${_repoagent}/lib/libtritonserver.so"
    INTERFACE_INCLUDE_DIRECTORIES "${_repoagent}/include")
  # Python and native agents look for the functions of the library in the program: it exports them.
  add_library(repoagent::static INTERFACE IMPORTED)
  set_target_properties(repoagent::static PROPERTIES
    INTERFACE_INCLUDE_DIRECTORIES "${_repoagent}/include"
    INTERFACE_LINK_OPTIONS "-rdynamic"
    INTERFACE_LINK_LIBRARIES "-Wl,--whole-archive,${_repoagent}/lib/librepoagent.a,--no-whole-archive;pthread;dl")
endif()
