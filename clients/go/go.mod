module dormouse.example/clients/go

go 1.19
