"""The routes: each module has `routes(desk)`, which makes an APIRouter, listed in app.py."""
