module example

go 1.19

require dormouse.example/clients/go v0.1.0

replace dormouse.example/clients/go => ../
